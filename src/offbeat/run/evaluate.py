"""Evaluation: the deterministic policy on environments of its own, the same episodes every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.collect.rollout import advance
from offbeat.envs import Vector
from offbeat.policies import Policy
from offbeat.types import Array

MOST_ENVIRONMENTS = 16
"""Episodes are spread over at most this many environments, stepped side by side."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of every episode, and the weights (by version) and step that they belong to."""

    step: int
    version: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def episodes(self) -> int:
        return len(self.returns)

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "version": self.version,
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }


def evaluate(
    vector: Vector, policy: Policy, episodes: int, stop: Callable[[], bool] = lambda: False
) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """Returns and lengths of `episodes` episodes from the vector's first seeds on, or None when `stop` says so.

    Each environment plays a fixed share of the episodes, so that short ones are not counted more often than long ones.
    """
    share = [episodes // vector.num_envs + (env < episodes % vector.num_envs) for env in range(vector.num_envs)]
    results: dict[tuple[int, int], tuple[float, int]] = {}
    observation = vector.reset()
    carry = policy.initial_carry(vector.num_envs)
    while len(results) < episodes:
        if stop():
            return None
        moved = advance(vector, policy, observation, carry, None)
        observation, carry = moved.step.observation, moved.carry
        for episode in moved.step.finished:
            if episode.episode < share[episode.env]:
                results[episode.episode, episode.env] = episode.total_reward, episode.length
    ordered = [results[key] for key in sorted(results)]
    return tuple(total for total, _ in ordered), tuple(length for _, length in ordered)


def record(vector: Vector, policy: Policy, most_frames: int = 1_000) -> list[Array]:
    """Frames (H, W, 3) uint8 of one deterministic episode of the vector's environment 0."""
    observation, carry = vector.reset(), policy.initial_carry(vector.num_envs)
    frames: list[Array] = []
    while len(frames) < most_frames:
        frame = vector.render()
        if frame is not None:
            frames.append(frame)
        moved = advance(vector, policy, observation, carry, None)
        observation, carry = moved.step.observation, moved.carry
        if any(episode.env == 0 for episode in moved.step.finished):
            break
    return frames
