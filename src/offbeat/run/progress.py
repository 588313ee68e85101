"""Where a run stands: counters, the latest returns, and when the next log, evaluation and checkpoint are due."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.run.training import Training
from offbeat.types import Chunk

WINDOW = 100
"""Training returns, lengths and successes are averaged over this many latest episodes."""
RATE_SECONDS = 10.0
"""Rates are measured over at most about this long."""


class Progress:
    """Counters of one run, as state (`counters`) and what only logging needs (`bookkeeping`).

    Steps and updates are counted by the training itself. every: the interval of each event, in steps; 0 for never.
    """

    def __init__(self, training: Training, every: Mapping[str, int]) -> None:
        self._training = training
        self.total_steps, self.total_updates = (
            training.config.run.length.total_steps,
            training.config.run.length.total_updates,
        )
        self.calls = self.episodes = 0
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.successes: deque[bool] = deque(maxlen=WINDOW)  # of episodes whose final info says
        self.losses: Mapping[str, float] = {}
        self.best_return: float | None = None
        self._every = dict(every)
        self._next = dict(every)
        self._earlier_seconds = 0.0
        self._start = time.monotonic()
        self._marks = deque([(self._start, 0, 0)])

    @property
    def step(self) -> int:
        return self._training.steps

    @property
    def updates(self) -> int:
        return self._training.learner.updates

    @property
    def return_100(self) -> float | None:
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def length_100(self) -> float | None:
        return float(np.mean(self.lengths)) if self.lengths else None

    @property
    def success_100(self) -> float | None:
        return float(np.mean(self.successes)) if self.successes else None

    @property
    def wall_seconds(self) -> float:
        """Time spent training, over all resumes."""
        return self._earlier_seconds + time.monotonic() - self._start

    @property
    def steps_per_second(self) -> float:
        return self._measure()[0]

    @property
    def updates_per_second(self) -> float:
        return self._measure()[1]

    def _measure(self) -> tuple[float, float]:
        """Steps and updates per second over the last five to ten seconds, or since the beginning."""
        now = time.monotonic()
        while len(self._marks) > 1 and now - self._marks[1][0] > RATE_SECONDS:
            self._marks.popleft()
        then, step, updates = self._marks[0]
        if now - self._marks[-1][0] > RATE_SECONDS / 2:
            self._marks.append((now, self.step, self.updates))
        seconds = max(now - then, 1e-9)
        return (self.step - step) / seconds, (self.updates - updates) / seconds

    def after(self, chunk: Chunk) -> None:
        self.calls += chunk.calls
        self.episodes += len(chunk.finished)
        for episode in chunk.finished:
            self.returns.append(episode.total_reward)
            self.lengths.append(episode.length)
            if episode.success is not None:
                self.successes.append(episode.success)

    def due(self, event: str) -> bool:
        return bool(self._every[event]) and self.step >= self._next[event]

    def settle(self, event: str) -> None:
        """The event has been dealt with; the next is due at the following multiple of its interval."""
        if self._every[event]:
            self._next[event] = (self.step // self._every[event] + 1) * self._every[event]

    def counters(self) -> dict[str, Any]:
        """What belongs to the run's logical state."""
        return {"step": self.step, "updates": self.updates, "calls": self.calls, "episodes": self.episodes}

    def bookkeeping(self) -> dict[str, Any]:
        """What only logging needs."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "successes": list(self.successes),
            "losses": dict(self.losses),
            "best_return": self.best_return,
            "next": dict(self._next),
            "wall_seconds": self.wall_seconds,
        }

    def restore(self, counters: Mapping[str, Any], bookkeeping: Mapping[str, Any]) -> None:
        self.calls, self.episodes = counters["calls"], counters["episodes"]
        self.returns.extend(bookkeeping["returns"])
        self.lengths.extend(bookkeeping["lengths"])
        self.successes.extend(bookkeeping.get("successes", ()))  # checkpoints of before there were any have none
        self.losses, self.best_return = bookkeeping["losses"], bookkeeping["best_return"]
        self._next |= bookkeeping["next"]
        self._earlier_seconds = bookkeeping["wall_seconds"]
        self._marks = deque([(time.monotonic(), self.step, self.updates)])
