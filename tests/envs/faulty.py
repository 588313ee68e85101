"""Environments that do one thing wrong each, or that are hard to rebuild."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def _or(given: Any, default: Any) -> Any:
    """An empty Dict space is false, so `or` would replace it."""
    return default if given is None else given


class Bent(gymnasium.Env[Any, Any]):
    """A correct environment (observation: three numbers, episodes of 10), except for what is passed in.

    at_step: called with (environment, the five values) and returns what `step` returns, from step `when` on.
    at_reset: called with (environment, the two values) and returns what `reset` returns.
    """

    def __init__(
        self,
        at_step: Callable[..., Any] | None = None,
        at_reset: Callable[..., Any] | None = None,
        when: int = 0,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        length: int = 10,
    ) -> None:
        self.observation_space = _or(observation_space, spaces.Box(-100, 100, (3,), np.float32))
        self.action_space = _or(action_space, spaces.Box(-1, 1, (2,), np.float32))
        self.at_step, self.at_reset, self.when, self.length = at_step, at_reset, when, length
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count, self.start = 0, self.np_random.normal()
        result = self._look(), {}
        return self.at_reset(self, *result) if self.at_reset else result

    def step(self, action: Any) -> Any:
        self.count += 1
        result = self._look(), 1.0, False, self.count >= self.length, {}
        return self.at_step(self, *result) if self.at_step and self.count > self.when else result

    def _look(self) -> Any:
        return np.array([self.start, self.count, 0], np.float32)


class Walk(gymnasium.Env[np.ndarray, np.ndarray]):
    """A random walk. drift "seeded" uses the seeded generator, "free" one that reset does not seed."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, drift: str = "seeded", length: int = 50) -> None:
        self.drift, self.length, self.free = drift, length, np.random.default_rng()
        self.position, self.count = np.zeros(2), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.count = self.np_random.normal(size=2), 0
        return self.position.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        rng = self.np_random if self.drift == "seeded" else self.free
        self.position = self.position + action + rng.normal(size=2)
        self.count += 1
        return self.position.copy(), float(self.position[0]), self.count >= self.length, False, {}


class SavedWalk(Walk):
    """A walk with its own generator and save_state; replaying its actions could not rebuild it."""

    def __init__(self, length: int = 50) -> None:
        super().__init__("free", length)
        self.loads = 0

    def save_state(self) -> dict[str, Any]:
        return {"position": self.position, "count": self.count, "free": self.free.bit_generator.state}

    def load_state(self, state: dict[str, Any]) -> None:
        self.loads += 1
        self.position, self.count = state["position"].copy(), state["count"]
        self.free.bit_generator.state = state["free"]
