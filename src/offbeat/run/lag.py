"""How far behind the learner the weights were that acted, in updates and in seconds."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

REMEMBERED = 10_000
"""Percentiles are over this many latest chunks."""


class Lag:
    """Collects the lag of each chunk when the learner takes it in."""

    def __init__(self) -> None:
        self._updates: deque[int] = deque(maxlen=REMEMBERED)
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self.latest, self.latest_seconds, self.most = 0, 0.0, 0

    def add(self, updates: int, seconds: float | None) -> None:
        self._updates.append(updates)
        self.latest, self.most = updates, max(self.most, updates)
        if seconds is not None:
            self._seconds.append(seconds)
            self.latest_seconds = seconds

    def seconds(self) -> dict[str, float]:
        """The age of the weights that acted last, for the log."""
        return {"policy_lag_seconds": self.latest_seconds}

    def summary(self) -> dict[str, Any]:
        """The latest, percentiles of the last chunks, and the most since the start."""
        found: dict[str, Any] = {"updates": self.latest, "most_updates": self.most}
        for name, values in (("updates", self._updates), ("seconds", self._seconds)):
            for percent in (50, 95, 99):
                found[f"{name}_p{percent}"] = float(np.percentile(values, percent)) if values else None
        return found
