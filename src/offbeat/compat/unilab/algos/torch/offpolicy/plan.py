"""Iterations in terms of our runs: environment steps, updates, and what is saved when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.run.callbacks import ChunkEvent, UpdateEvent

FREE_STEPS = 10**12
"""A free-running run ends by its updates: more steps than one takes."""


@dataclass(frozen=True)
class Plan:
    """An iteration is `vector_steps` steps of every environment and `updates` updates.

    In synchronous runs, the first iteration begins when replay holds `threshold` transitions, after whole groups of
    vector_steps. replay_steps: vector steps that replay holds.
    """

    num_envs: int
    vector_steps: int
    updates: int
    threshold: int
    synchronous: bool
    replay_steps: int

    @property
    def group(self) -> int:
        """Environment steps of an iteration; free-running, vector_steps has no effect."""
        return self.num_envs * (self.vector_steps if self.synchronous else 1)

    def settings(self, iterations: int) -> dict[str, Any]:
        """Pace and length of a run of so many iterations in all."""
        common = {
            "num_envs": self.num_envs,
            "random_steps": 0,
            "total_updates": iterations * self.updates,
            "updates_per_step": self.updates / self.group,
        }
        if not self.synchronous:
            return {
                **common,
                "warmup_steps": self.threshold,
                "total_steps": FREE_STEPS,
                "pace": "free",
                "collectors": 1,
                "collect_ahead": max(1, self.replay_steps // 2),
            }
        before = (-(-self.threshold // self.group) - 1) * self.group
        return {
            **common,
            "warmup_steps": before,
            "total_steps": before + iterations * self.group,
            "update_every": self.vector_steps,
        }


class Following:
    """A callback of a run: asks for checkpoints by iterations, and keeps the returns of the latest 100 episodes.

    compare: `build_reward_comparison_metrics`.
    """

    def __init__(
        self, plan: Plan, save_interval: int, compare: Callable[[deque[float], float], dict[str, float]]
    ) -> None:
        self._plan, self._interval, self._compare = plan, save_interval, compare
        self._asked: int | None = None
        self.episodes: deque[float] = deque(maxlen=100)
        self.lengths: deque[int] = deque(maxlen=100)
        self.reward_history: deque[float] = deque(maxlen=100)

    def on_chunk(self, event: ChunkEvent) -> None:
        for episode in event.chunk.finished:
            self.episodes.append(episode.total_reward)
            self.lengths.append(episode.length)
        if event.chunk.finished:
            self.reward_history.append(float(np.mean(self.episodes)))
        for name, value in self._compare(self.reward_history, 0.0).items():
            event.run.log(name, value)

    def summary(self) -> dict[str, float | None]:
        """Returns and lengths of the latest episodes; None before the first has ended."""
        return {
            "final_mean_reward": self.reward_history[-1] if self.reward_history else None,
            "best_mean_reward": max(self.reward_history, default=None),
            "mean_episode_length": float(np.mean(self.lengths)) if self.lengths else None,
        }

    def on_update(self, event: UpdateEvent) -> None:
        if self._interval <= 0:
            return
        due = event.updates // self._plan.updates // self._interval
        if self._asked is None:  # the first call of a run that may have been resumed
            self._asked = (event.updates - event.count) // self._plan.updates // self._interval
        if due > self._asked:
            self._asked = due
            event.run.save_checkpoint()
