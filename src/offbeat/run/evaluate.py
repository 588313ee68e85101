"""Evaluation: the deterministic policy on environments of its own, the same episodes every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.collect.rollout import advance
from offbeat.envs import Vector
from offbeat.policies import Policy
from offbeat.types import Array, Episode

MOST_ENVIRONMENTS = 16
"""Episodes are spread over at most this many environments, stepped side by side."""

Played = tuple[tuple[float, ...], tuple[int, ...], tuple[bool | None, ...]]
"""Returns, lengths and successes of episodes."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of every episode, and the weights (by version) and step that they belong to.

    successes: of every episode, None for one whose final info does not say; () where none says.
    """

    step: int
    version: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    successes: tuple[bool | None, ...] = ()

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    @property
    def success_rate(self) -> float | None:
        """Of the episodes that say whether they were a success; None where none does."""
        known = [each for each in self.successes if each is not None]
        return float(np.mean(known)) if known else None

    @property
    def episodes(self) -> int:
        return len(self.returns)

    def to_json(self) -> dict[str, Any]:
        rate = self.success_rate
        return {
            "step": self.step,
            "version": self.version,
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            **({} if rate is None else {"success_rate": rate, "successes": list(self.successes)}),
        }


def evaluate(vector: Vector, policy: Policy, episodes: int, stop: Callable[[], bool] = lambda: False) -> Played | None:
    """Returns, lengths and successes of `episodes` episodes from the vector's first seeds on; None when told to stop.

    Each environment plays a fixed share of the episodes, so that short ones are not counted more often than long ones.
    """
    share = [episodes // vector.num_envs + (env < episodes % vector.num_envs) for env in range(vector.num_envs)]
    results: dict[tuple[int, int], Episode] = {}
    observation = vector.reset()
    carry = policy.initial_carry(vector.num_envs)
    while len(results) < episodes:
        if stop():
            return None
        moved = advance(vector, policy, observation, carry, None)
        observation, carry = moved.step.observation, moved.carry
        for episode in moved.step.finished:
            if episode.episode < share[episode.env]:
                results[episode.episode, episode.env] = episode
    ordered = [results[key] for key in sorted(results)]
    totals, lengths = tuple(each.total_reward for each in ordered), tuple(each.length for each in ordered)
    successes = tuple(each.success for each in ordered)
    return totals, lengths, () if set(successes) == {None} else successes


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
