"""An environment whose final info says whether the episode was a success: it was where its seed is even."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Reaching(gymnasium.Env[Any, np.ndarray]):
    """Episodes of `length` steps. key: under which name the info tells of success; None does not."""

    def __init__(self, length: int = 5, key: str | None = "is_success") -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self._length, self._key = length, key
        self._step, self._even = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        self._even = int(self.np_random.integers(2)) == 0
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        ended = self._step >= self._length
        # Until the last step it says the contrary: that step counts.
        success = {} if self._key is None else {self._key: np.float32(self._even == ended)}
        info = {**success, "steps": self._step, "place": np.full(2, self._step), "self": self}
        return np.zeros(2, np.float32), float(self._even), False, ended, info
