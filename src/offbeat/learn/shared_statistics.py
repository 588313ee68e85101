"""Normaliser statistics of several ranks: each collects its fresh rows apart, and all merge them at the same moments.

So every rank has the statistics that one rank has that saw all rows.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.learn.statistics import Preprocessor, RunningMoments
from offbeat.ranks import Ranks
from offbeat.types import Array


class GatheredPreprocessor:
    """A user's own preprocessor: it learns from the fresh observations of all ranks, in the order of ranks."""

    def __init__(self, own: Preprocessor) -> None:
        self.own = own
        self._fresh: list[Array] = []

    def update(self, observations: Array) -> None:
        self._fresh.append(np.array(observations))

    def gather(self, ranks: Ranks) -> None:
        """Learns from what every rank has seen since the last call."""
        rows, self._fresh = self._fresh, []
        file = io.BytesIO()
        if rows:
            np.save(file, np.concatenate(rows), allow_pickle=False)
        for data in ranks.gather_bytes(file.getvalue()):
            if data:
                self.own.update(np.load(io.BytesIO(data), allow_pickle=False))

    def __call__(self, observations: Array) -> Array:
        return self.own(observations)

    def arrays(self) -> dict[str, Array]:
        return self.own.arrays()

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.own.restore(arrays)

    def discard(self) -> None:
        """Forgets what was seen since the last call of `gather`."""
        self._fresh.clear()


class SharedStatistics:
    """The statistics of a learner that is one of several ranks. rows: seen since the last merge."""

    def __init__(self, parts: Mapping[str, Any], ranks: Ranks) -> None:
        self._ranks, self.rows = ranks, 0
        found = [getattr(part, "moments", part) for part in parts.values()]
        self._moments = [part for part in found if isinstance(part, RunningMoments)]
        self._gathered = [part for part in found if isinstance(part, GatheredPreprocessor)]
        for each in self._moments:
            each.defer()
        self._sizes = [1, *(1 + 2 * len(each.mean) for each in self._moments)]

    @property
    def empty(self) -> bool:
        """Whether there are no statistics at all, on any rank."""
        return not self._moments and not self._gathered

    def take_fresh(self) -> Array:
        """What this rank has seen since the last call, as numbers for `Ranks.gather`."""
        rows, self.rows = self.rows, 0
        return np.concatenate(([rows], *(each.take_fresh() for each in self._moments)))

    def discard_fresh(self) -> None:
        """Forgets what this rank has seen since the last merge, because a saved state takes its place."""
        self.take_fresh()
        for each in self._gathered:
            each.discard()

    def gather(self) -> Array:
        """`take_fresh` of every rank."""
        return self._ranks.gather(self.take_fresh())

    def merge(self, found: Array) -> int:
        """Merges the numbers of all ranks, (K, n); returns the rows that they have seen."""
        parts = np.split(found, np.cumsum(self._sizes)[:-1], axis=1)
        for moments, part in zip(self._moments, parts[1:], strict=True):
            moments.merge_fresh(part)
        for each in self._gathered:
            each.gather(self._ranks)
        return int(parts[0].sum())
