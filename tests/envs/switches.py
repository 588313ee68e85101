"""An environment with several independent actions in each step, and the spaces that have them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SEVERAL = [
    spaces.MultiDiscrete([3, 2, 4]),
    spaces.MultiDiscrete([3, 1, 2], start=[-1, 7, 2]),
    spaces.MultiDiscrete([1]),
    spaces.MultiDiscrete(np.array([[2, 3, 1], [4, 2, 5]]), start=np.array([[0, -2, 5], [1, 0, 3]])),
    spaces.MultiDiscrete([5, 2], dtype=np.uint8, start=[200, 1]),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
]
"""Starts that are not 0, branches with one choice, several axes, and other dtypes than int64."""


class Switches(gymnasium.Env[np.ndarray, np.ndarray]):
    """Observation: the sum (A,) of the actions of this episode. Raises for an action outside of its space.

    given: what `step` was called with. Episodes are truncated after `length` steps.
    """

    def __init__(self, space: spaces.MultiDiscrete | spaces.MultiBinary = SEVERAL[1], length: int = 7) -> None:
        size = int(np.prod(space.shape))
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space, self.length, self.given = space, length, []
        self.total, self.count = np.zeros(size, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.total, self.count = np.zeros_like(self.total), 0
        return self.total, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        if not self.action_space.contains(action) or action.dtype != self.action_space.dtype:
            raise ValueError(f"{action!r} is no element of {self.action_space}")
        self.given.append(action.copy())
        self.total, self.count = self.total + action.ravel().astype(np.float32), self.count + 1
        return self.total, float(self.total[0]), False, self.count >= self.length, {}
