"""Synthetic transitions, the same for every contestant; uses only NumPy, which every virtual environment has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Rows:
    """R transitions: obs, next_obs (R, O); action (R, A) in [-1, 1]; reward, terminated (R,). All float32."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray

    def __len__(self) -> int:
        return len(self.reward)


def rows(count: int, observation: int, action: int) -> Rows:
    """Standard normal observations and rewards, one row in a hundred terminal."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    return Rows(
        obs=normal(count, observation),
        action=np.tanh(normal(count, action)),
        reward=normal(count),
        next_obs=normal(count, observation),
        terminated=(rng.random(count) < 0.01).astype(np.float32),
    )


def episodes(count: int, observation: int, action: int, length: int) -> Rows:
    """The same rows as episodes of this many steps, each of which terminates."""
    terminated = (np.arange(1, count + 1) % length == 0).astype(np.float32)
    return replace(rows(count, observation, action), terminated=terminated)


def states(count: int, units: int) -> np.ndarray:
    """Recurrent states (count, units) before each row, in (-1, 1) as those of a GRU."""
    return np.tanh(np.random.default_rng(1).standard_normal((count, units), np.float32))


def chosen(data: Rows) -> Rows:
    """The same rows with Discrete actions (R, 1): the index of the largest component of each action."""
    return replace(data, action=data.action.argmax(1, keepdims=True).astype(np.float32))


def shaped_rows(count: int, shape: dict[str, Any]) -> Rows:
    """Rows for a learner's shape."""
    data = rows(count, shape["observation"], shape["action"])
    return chosen(data) if shape["algorithm"] == "dqn" else data


def shaped_environment(shape: dict[str, Any]) -> Any:
    """Spaces for a learner's shape."""
    return environment(shape["observation"], shape["action"], discrete=shape["algorithm"] == "dqn")


def environment(observation: int, action: int, discrete: bool = False) -> Any:
    """A Gymnasium environment with spaces only, for libraries that read sizes from an environment."""
    import gymnasium

    class Spaces(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observation,), np.float32)
        action_space = (
            gymnasium.spaces.Discrete(action) if discrete else gymnasium.spaces.Box(-1.0, 1.0, (action,), np.float32)
        )

    return Spaces()


def offbeat_columns(data: Rows) -> dict[str, np.ndarray]:
    """The columns of an Offbeat chunk: one environment, whose episodes end at `terminated`."""
    ends = np.concatenate(([0], np.flatnonzero(data.terminated) + 1))
    index = np.arange(len(data))
    episode = np.searchsorted(ends, index, side="right") - 1
    integers = {"version": np.zeros_like(index), "env": np.zeros_like(index), "episode": episode}
    return {
        "obs": data.obs,
        "action": data.action,
        "reward": data.reward,
        "terminated": data.terminated,
        "truncated": np.zeros_like(data.terminated),
        "next_obs": data.next_obs,
        **integers,
        "step": index - ends[episode],
    }
