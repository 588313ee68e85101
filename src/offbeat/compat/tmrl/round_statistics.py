"""The statistics of one round."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from offbeat.compat.tmrl.buffer import episodes_of

_EPISODES = {
    "return_test": "test_return",
    "return_train": "train_return",
    "episode_length_test": "test_steps",
    "episode_length_train": "train_steps",
}


class RoundStatistics:
    """Collects what happens in a round. idle_time: seconds in which training waited for samples."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.idle_time = 0.0
        self._metrics: dict[str, list[Any]] = {}
        self._durations: dict[str, list[float]] = {"sampling_duration": [], "training_step_duration": []}
        self._episodes: dict[str, list[float]] = {name: [] for name in _EPISODES}

    def received(self, buffer: Any) -> None:
        episodes = episodes_of(buffer)
        for name, part in _EPISODES.items():
            self._episodes[name] += episodes[part]

    def trained(self, metrics: Mapping[str, Any], sampling: float, training: float) -> None:
        """metrics: numbers or tensors, which become numbers at the end of the round only."""
        for name, value in metrics.items():
            self._metrics.setdefault(name, []).append(value)
        self._durations["sampling_duration"].append(sampling)
        self._durations["training_step_duration"].append(training)

    def row(self, memory_len: int) -> dict[str, float]:
        """Means over the round; NaN where there was nothing, such as no test episode."""
        parts = {**self._metrics, **self._episodes, **self._durations}
        means = {name: _mean([float(value) for value in values]) for name, values in parts.items()}
        round_time = time.monotonic() - self._start
        return {"memory_len": memory_len, "round_time": round_time, "idle_time": self.idle_time, **means}


def _mean(values: list[float]) -> float:
    """The mean of those that are numbers."""
    numbers = [value for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan
