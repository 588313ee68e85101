"""The replay buffer of paths, over Offbeat's ring of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from offbeat.compat.metarl.experiment.deterministic import generator
from offbeat.errors import UsageError
from offbeat.memory import check_fits
from offbeat.replay.chunkfile import DTYPES
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk, Field, Schema

_PATH = "path_number"
"""The column that says which path a row is from."""


class PathBuffer:
    """Stores paths as rows of one ring; the oldest rows are overwritten when it is full.

    A path is a dict of arrays (path length, size). The first path decides the keys, sizes and dtypes of all.
    """

    def __init__(self, capacity_in_transitions: int) -> None:
        if int(capacity_in_transitions) < 1:
            raise UsageError(f"capacity_in_transitions={capacity_in_transitions} is out of range: at least 1")
        self._capacity = int(capacity_in_transitions)
        self._rng = generator("replay")
        self._shard: Shard | None = None
        self._paths: deque[tuple[int, int]] = deque()  # first row and one past the last, of whole paths, oldest first
        self._added = 0

    @property
    def capacity_in_transitions(self) -> int:
        return self._capacity

    @property
    def n_transitions_stored(self) -> int:
        """The number of transitions that can be sampled."""
        return 0 if self._shard is None else self._shard.size

    def add_path(self, path: Mapping[str, Any]) -> None:
        """Appends a path; ValueError for a missing key, a wrong shape, or a path longer than the buffer."""
        arrays = {key: np.asarray(array) for key, array in path.items()}
        length = self._check(arrays)
        shard = self._shard or self._allocate(_schema(arrays))
        start = shard.committed
        shard.write(Chunk({**arrays, _PATH: np.full(length, self._added)}))
        self._added += 1
        self._paths.append((start, start + length))
        while self._paths[0][0] < shard.oldest:
            self._paths.popleft()

    def sample_transitions(self, batch_size: int) -> dict[str, Array]:
        """Transitions, drawn with replacement, all equally often: each array is (batch_size, size)."""
        shard = self._filled()
        return self._rows(shard, shard.oldest + self._rng.integers(shard.size, size=batch_size))

    def sample_path(self) -> dict[str, Array]:
        """One whole path, drawn among those of which no transition is overwritten."""
        shard = self._filled()
        if not self._paths:
            raise UsageError("the buffer holds no whole path: give it a larger capacity_in_transitions")
        start, stop = self._paths[int(self._rng.integers(len(self._paths)))]
        return self._rows(shard, np.arange(start, stop))

    def clear(self) -> None:
        """Removes all paths; the next one may have other keys."""
        self._shard = None
        self._paths.clear()

    def _filled(self) -> Shard:
        if self._shard is None or not self._shard.size:
            raise UsageError("the buffer is empty: add a path before sampling")
        return self._shard

    def _rows(self, shard: Shard, rows: Array) -> dict[str, Array]:
        packed, places = shard.gather(rows), rows % shard.capacity
        names = packed.dtype.names or ()
        keys = [name for name in shard.schema.names if name != _PATH]
        return {key: np.ascontiguousarray(packed[key]) if key in names else shard.column(key)[places] for key in keys}

    def _allocate(self, schema: Schema) -> Shard:
        check_fits(f"capacity_in_transitions={self._capacity}", Shard.nbytes(schema, self._capacity))
        self._shard = Shard(schema, self._capacity)
        return self._shard

    def _check(self, arrays: Mapping[str, Array]) -> int:
        """The length of the path; nothing is stored of a path that does not fit."""
        lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
        if not arrays or 0 in lengths.values():
            raise UsageError(f"the path {lengths} has nothing in it; pass arrays (path length, size), at least one row")
        if len(set(lengths.values())) > 1:
            raise UsageError(f"the arrays of the path differ in length: {lengths}; all must have one row per step")
        if _PATH in arrays:
            raise UsageError(f"the path has a key {_PATH!r}, which the buffer uses itself; rename it")
        length = next(iter(lengths.values()))
        if length > self._capacity:
            raise UsageError(
                f"a path of {length} transitions does not fit into capacity_in_transitions={self._capacity}; use a "
                "larger capacity, or shorter paths"
            )
        expected = {} if self._shard is None else {field.name: field.shape for field in self._shard.schema}
        expected.pop(_PATH, None)
        if self._shard is not None and (missing := sorted(expected.keys() ^ arrays.keys())):
            raise UsageError(f"the path and the buffer differ in the key {missing[0]!r}; all paths have the same keys")
        for key, array in arrays.items():
            if array.ndim != 2 or array.shape[1:] != expected.get(key, array.shape[1:]):
                wanted = ("path length", *expected.get(key, ("size",)))
                raise UsageError(f"path[{key!r}] has shape {array.shape}; it must be {wanted}".replace("'", ""))
        return length

    # Checkpoints.

    def saved_values(self) -> dict[str, Any]:
        """What a checkpoint holds beside the rows, as JSON."""
        schema = None if self._shard is None else [[each.name, *each.shape, each.dtype] for each in self._shard.schema]
        first = self._paths[0][0] if self._paths else 0
        return {"schema": schema, "added": self._added, "first": first, "rng": self._rng.bit_generator.state}

    @property
    def shard(self) -> Shard | None:
        """The rows; None before the first path."""
        return self._shard

    def prepare(self, values: Mapping[str, Any]) -> Shard | None:
        """Makes the empty ring that the rows of a checkpoint are loaded into; None if it holds none."""
        self.clear()
        if values["schema"] is None:
            return None
        fields = (Field(name, tuple(shape), dtype) for name, *shape, dtype in values["schema"])
        return self._allocate(Schema(tuple(fields)))

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continues after the rows are loaded."""
        self._added = int(values["added"])
        self._rng.bit_generator.state = values["rng"]
        self._paths.clear()
        if self._shard is None or not self._shard.size:
            return
        held = np.arange(self._shard.oldest, self._shard.committed)
        numbers = self._shard.column(_PATH)[held % self._capacity]
        starts = held[np.flatnonzero(np.diff(numbers, prepend=-1))].tolist()
        whole = [pair for pair in pairwise([*starts, self._shard.committed]) if pair[0] >= values["first"]]
        self._paths.extend(whole[self._shard.oldest > values["first"] :])


def _schema(arrays: Mapping[str, Array]) -> Schema:
    fields = [Field(key, array.shape[1:], array.dtype.name) for key, array in arrays.items()]
    if wrong := [field for field in fields if field.dtype not in DTYPES]:
        raise UsageError(f"path[{wrong[0].name!r}] is {wrong[0].dtype}; use one of {', '.join(DTYPES)}")
    return Schema((*fields, Field(_PATH, (), "int64")))
