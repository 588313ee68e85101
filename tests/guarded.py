"""An environment that allows some actions at each step, tells them by a mask, and raises where another is taken."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

CHOICES, BRANCHES = 5, (3, 4)


class Guarded(gymnasium.Env):
    """Episodes of `length` steps; the allowed actions are drawn anew at each, from the episode's seed.

    mask: "info" or "observation", where it is found as `key`. several: MultiDiscrete actions. ends: "terminated",
    where the last mask allows nothing, "gone", where there is none, or "truncated".
    """

    def __init__(
        self, mask: str = "info", key: str = "allowed", several: bool = False, ends: str = "terminated", length: int = 4
    ) -> None:
        self._counts = BRANCHES if several else (CHOICES,)
        size = sum(self._counts)
        seen = Box(-1.0, 1.0, (3,), np.float32)
        self.observation_space = Dict({"seen": seen, key: MultiBinary(size)}) if mask == "observation" else seen
        self.action_space = MultiDiscrete(BRANCHES) if several else Discrete(CHOICES, start=1)
        self._where, self._key, self._ends, self._length, self._step = mask, key, ends, length, 0
        self._mask = np.ones(size, np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._show()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.atleast_1d(action) - (0 if isinstance(self.action_space, MultiDiscrete) else 1)
        starts = np.cumsum((0, *self._counts[:-1]))
        if not self._mask[starts + chosen].all():
            raise RuntimeError(f"forbidden: {action} under {self._mask.tolist()}")
        self._step += 1
        over = self._step == self._length
        raw, info = self._show(over and self._ends != "truncated")
        if over and self._ends == "gone":
            info = {}
        return raw, float(chosen.sum()), over and self._ends != "truncated", over and self._ends == "truncated", info

    def _show(self, over: bool = False) -> tuple[Any, dict[str, Any]]:
        parts = []
        for count in self._counts:
            part = self.np_random.random(count) < 0.5
            part[self.np_random.integers(count)] = True
            parts.append(part)
        self._mask = np.concatenate(parts).astype(np.int8) * (not over)
        seen = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        if self._where == "observation":
            return {"seen": seen, self._key: self._mask.copy()}, {}
        return seen, {self._key: self._mask.copy()}


def make(**kwargs: Any) -> Guarded:
    return Guarded(**kwargs)


class Unguarded(gymnasium.Wrapper):
    """Takes the first allowed action where a forbidden one comes, as many environments do, in a way of their own."""

    def step(self, action: Any) -> Any:
        env = self.env.unwrapped
        assert isinstance(env, Guarded)
        allowed = np.flatnonzero(env._mask) + 1
        return super().step(action if action in allowed else allowed[0])


def unguarded(env: gymnasium.Env) -> gymnasium.Env:
    return Unguarded(env)
