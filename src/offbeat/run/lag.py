"""Policy lag: the age of the acting weights when the learner receives a chunk, in updates and in seconds."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any

import numpy as np

WINDOW = 10_000
"""Percentiles are over this many latest chunks."""
VERSIONS_REMEMBERED = 10_000


class PolicyLag:
    """Records the policy lag of each chunk when the learner receives it."""

    def __init__(self) -> None:
        self._updates: deque[int] = deque(maxlen=WINDOW)
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._published: dict[int, float] = {}  # when each version was published
        self.latest, self.latest_seconds, self.largest = 0, 0.0, 0

    def published(self, version: int) -> None:
        """Remembers when a version was published."""
        self._published[version] = monotonic()
        if len(self._published) > VERSIONS_REMEMBERED:
            del self._published[next(iter(self._published))]

    def add(self, updates: int, version: int) -> None:
        """A chunk that `version` acted in, `updates` updates behind the learner."""
        self._updates.append(updates)
        self.latest, self.largest = updates, max(self.largest, updates)
        if (when := self._published.get(version)) is not None:
            self.latest_seconds = monotonic() - when
            self._seconds.append(self.latest_seconds)

    def summary(self) -> dict[str, Any]:
        """The latest lag, the largest since the start, and percentiles over the last chunks."""
        numbers: dict[str, Any] = {"updates": self.latest, "most_updates": self.largest}
        for name, values in (("updates", self._updates), ("seconds", self._seconds)):
            for percent in (50, 95, 99):
                numbers[f"{name}_p{percent}"] = float(np.percentile(values, percent)) if values else None
        return numbers
