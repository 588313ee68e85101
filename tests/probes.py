"""Probe environments: so small that the value of every action is known on paper."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Probe(gymnasium.Env):
    """An episode of `length` steps; the observation is the step's index.

    reward: "end" pays 1 at the last step, "every" pays 1 at each, "action" pays -(a - 0.5)^2 for a in [-1, 1].
    ending: "terminated" or "truncated". discrete: actions are 0 to 4 and stand for -1, -0.5, 0, 0.5 and 1.
    """

    def __init__(
        self, length: int = 1, reward: str = "end", ending: str = "terminated", discrete: bool = False
    ) -> None:
        self.observation_space = Box(0.0, float(length), (1,), np.float32)
        self.action_space = Discrete(5) if discrete else Box(-1.0, 1.0, (1,), np.float32)
        self._length, self._reward, self._ending, self._step = length, reward, ending, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._see(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._step += 1
        last = self._step == self._length
        moved = float(action) / 2 - 1 if isinstance(self.action_space, Discrete) else float(action[0])
        pays = {"end": float(last), "every": 1.0, "action": -((moved - 0.5) ** 2)}
        return (
            self._see(),
            pays[self._reward],
            last and self._ending == "terminated",
            last and self._ending == "truncated",
            {},
        )

    def _see(self) -> np.ndarray:
        # A truncated probe shows the same state for ever, so that its value is that of an endless episode.
        return np.array([0.0 if self._ending == "truncated" else self._step], np.float32)
