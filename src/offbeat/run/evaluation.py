"""Evaluation: runs the deterministic policy on separate environments, with the same episodes every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.collect.step import advance
from offbeat.envs import Vector
from offbeat.policies import Policy
from offbeat.types import Array, Episode

MAX_EVALUATION_ENVS = 16
"""The largest number of environments that an evaluation steps in parallel."""

EpisodeResults = tuple[tuple[float, ...], tuple[int, ...], tuple[bool | None, ...]]
"""Returns, lengths and successes, one entry per episode; successes is () if no episode reports success."""


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation. step, version: the environment steps and updates of the evaluated weights.

    returns, lengths, successes: one entry per episode. A success is None if the episode's final info does not report
    it; successes is () if no episode reports it. video: the recorded episode, if `offbeat.evaluate` made one.
    """

    step: int
    version: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    successes: tuple[bool | None, ...] = ()
    video: Path | None = None

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
        """The fraction of successes among the episodes that report success; None if none does."""
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


def run_episodes(
    vector: Vector, policy: Policy, episodes: int, stop: Callable[[], bool] = lambda: False
) -> EpisodeResults | None:
    """Runs `episodes` episodes, from the vector's first seeds on; returns None if `stop()` became true.

    Each environment runs a fixed share of the episodes, so that short episodes do not count more often than long ones.
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


def record_frames(vector: Vector, policy: Policy, most_frames: int = 1_000) -> list[Array]:
    """Renders one deterministic episode of the vector's environment 0; frames are (H, W, 3) uint8."""
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
