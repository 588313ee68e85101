"""A ring buffer of rows with exactly one writer, in one flat buffer, which may be shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from offbeat.errors import CheckpointError
from offbeat.memory import ArrayLayout, fence
from offbeat.replay.block import pack
from offbeat.types import Array, Chunk, Packed, Schema

_FIRST, _WRITING, _COMMITTED = 0, 1, 2  # cursors in the 64-byte header; the rest of it is unused


class RowsUnavailable(ValueError):
    """The requested rows are not in the ring, or were overwritten."""


class Shard:
    """The last `capacity` rows of one writer.

    A row is identified by its absolute `sequence` (0, 1, 2, ...) and stored at index `sequence % capacity`. The packed
    fields of the schema are one array of rows (capacity,), so that a batch is one gather and a write one copy. Every
    other field is an array beside it.

    The rows are one flat ring in the order in which they were collected, time-major for a vector of environments, and
    not an array (T, N, ...): environments may contribute unequal numbers of rows (a call that only resets gives none).
    `Links` finds the successor of each row.

    Rows in [oldest, committed) are complete. Rows from `committed` up to the header's `writing` may be half-written;
    `oldest` already excludes the rows that they overwrite. A reader that sees `oldest` pass a row while it copies it
    must discard the copy. The shard numbers rows itself and ignores a written chunk's own `sequence`.
    """

    may_change_weights = True

    def __init__(self, schema: Schema, capacity: int, *, worker: int = 0, boot: int = 0, buffer: Any = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} is out of range: it must be at least 1")
        self.schema, self.capacity, self.worker, self.boot = schema, capacity, worker, boot
        layout = _layout(schema, capacity)
        # np.zeros maps pages only when they are first written, so the unused part of a large ring takes no memory.
        size = layout.nbytes
        memory = np.zeros(size, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, count=size)
        if not memory.flags.writeable:
            raise ValueError("the shard's buffer is read-only; pass a writable one")
        header, self._rows, *others = layout.views(memory)
        # Plain memory views: for so few bytes, a NumPy assignment takes several times as long.
        self._cursors, self._bytes = header.data, self._rows.view(np.uint8).data
        self._row, self._width = schema.row, schema.row.itemsize
        self._beside = {field.name: array for field, array in zip(schema.unpacked, others, strict=True)}
        self._columns = {name: self._rows[name] for name in schema.row.names or ()} | self._beside
        self.restores = 0  # calls of `restore`, which replace all rows

    @staticmethod
    def nbytes(schema: Schema, capacity: int) -> int:
        """The buffer size that a shard needs: header, packed rows, other fields, each 64-byte aligned."""
        return _layout(schema, capacity).nbytes

    @property
    def committed(self) -> int:
        """One past the newest complete row; also the number of rows ever written."""
        return self._cursors[_COMMITTED]

    rows = committed

    def continue_at(self, rows: int) -> None:
        """Checks that the shard has the rows of a checkpoint."""
        if self.committed != rows:
            raise CheckpointError(
                f"the checkpoint has {rows} rows of worker {self.worker}, but its shard has {self.committed}; restore "
                "replay from the same checkpoint first"
            )

    def ready(self, permit: int, calls: int) -> bool:
        return calls < permit

    @property
    def oldest(self) -> int:
        """The oldest row that is still complete."""
        first, following = self._cursors[_FIRST], self._cursors[_WRITING] - self.capacity
        return first if first > following else following

    @property
    def size(self) -> int:
        """Rows that can be read."""
        return max(0, self.committed - self.oldest)

    def write(self, chunk: Chunk, valid: Array | None = None, version: int = 0) -> int:
        """Appends the chunk's rows in order and returns their number. Only queues need `valid` and `version`.

        Of a chunk larger than the ring, the last `capacity` rows stay. Columns that are not packed yet, or that are
        stored beside the row, are checked and packed first, so a chunk that does not fit changes nothing.
        """
        rows, cursors = chunk.rows, self._cursors
        if not isinstance(rows, tuple) or rows[0] is not self._row or self._beside:
            rows = pack(chunk.columns, self.schema)
        _, data, count, _ = rows
        start = cursors[_COMMITTED]
        stop = start + count
        # Never decrease it: an interrupted write has damaged the rows under it until they are written again.
        if stop > cursors[_WRITING]:
            cursors[_WRITING] = stop
            fence()
        place, width = start % self.capacity, self._width
        if place + count > self.capacity or self._beside:
            self._put(rows, stop)
        else:
            self._bytes[place * width : (place + count) * width] = data
        fence()
        cursors[_COMMITTED] = stop
        return count

    def _put(self, rows: Packed, stop: int) -> None:
        """Copies rows that end before `stop`, and the fields beside them, in up to two pieces."""
        _, data, count, beside = rows
        width, kept = self._width, min(count, self.capacity)
        place = (stop - kept) % self.capacity
        head = min(kept, self.capacity - place)
        for start, end, to in ((count - kept, count - kept + head, place), (count - kept + head, count, 0)):
            past = to + end - start
            self._bytes[to * width : past * width] = memoryview(data)[start * width : end * width]
            for name, store in self._beside.items():
                store[to:past] = beside[name][start:end]

    def gather(self, rows: Array) -> Array:
        """A structured array (B,) with copies of the packed rows of the sequences (B,), which the ring must hold."""
        return self._rows.take(rows % self.capacity, mode="clip")

    def column(self, name: str) -> Array:
        """A view of a field's whole ring (capacity, *shape), in storage order."""
        return self._columns[name]

    def read(self, start: int, stop: int) -> Chunk:
        """A copy of the rows [start, stop) with every field of the schema, for saving."""
        if not self.oldest <= start <= stop <= self.committed:
            raise RowsUnavailable(
                f"rows {start} to {stop} are not all in the shard: it holds {self.oldest} to {self.committed}"
            )
        sequence = np.arange(start, stop)
        beside = {name: array[sequence % self.capacity] for name, array in self._beside.items()}
        rows = self._row, self.gather(sequence).tobytes(), stop - start, beside
        fence()
        if start < self.oldest:
            raise RowsUnavailable(
                f"rows from {start} on were overwritten while they were read: {self.oldest} is now the oldest"
            )
        return Chunk(rows, worker=self.worker, boot=self.boot, sequence=start)

    def view(self, start: int, stop: int) -> Iterator[Chunk]:
        """Read-only views of the rows [start, stop), in one or two chunks; valid until the writer overwrites them."""
        while start < stop:
            place = start % self.capacity
            count = min(stop - start, self.capacity - place)
            beside = {name: array[place : place + count] for name, array in self._beside.items()}
            for array in beside.values():
                array.flags.writeable = False
            data = self._bytes[place * self._width : (place + count) * self._width].toreadonly()
            yield Chunk((self._row, data, count, beside), start, worker=self.worker, boot=self.boot)
            start += count

    def cut_gaps(self) -> None:
        """Marks a row as truncated if its environment's next row is of another episode, but this one has no end."""
        held = np.arange(self.oldest, self.committed) % self.capacity
        held = held[np.argsort(self._columns["env"][held], kind="stable")]
        env, episode, terminated, truncated = (
            self._columns[name][held] for name in ("env", "episode", "terminated", "truncated")
        )
        gap = (env[1:] == env[:-1]) & (episode[1:] != episode[:-1]) & ~terminated[:-1] & ~truncated[:-1]
        self._columns["truncated"][held[:-1][gap]] = True

    def cut(self, env: int | None = None) -> None:
        """Marks the newest row of an environment (None: of each) as truncated, unless it is terminated.

        Only the writer may call this, when an episode cannot continue.
        """
        columns = [self._columns[name] for name in ("env", "terminated", "truncated")]
        held = np.arange(self.committed - 1, self.oldest - 1, -1) % self.capacity
        envs = columns[0][held]
        wanted = np.unique(envs) if env is None else [env]
        for each in wanted:
            if len(newest := np.flatnonzero(envs == each)[:1]):
                place = held[newest[0]]
                columns[2][place] |= not columns[1][place]

    def restore(self, chunks: Iterable[Chunk]) -> None:
        """Replaces the content by these consecutive chunks, whose rows keep their sequences."""
        self._begin(0)
        self.restores += 1
        for chunk in chunks:
            if self.committed == 0:
                self._begin(chunk.sequence)
            if chunk.sequence != self.committed:
                raise ValueError(f"rows {self.committed} to {chunk.sequence} are missing; chunks must be consecutive")
            self.write(chunk)

    def _begin(self, sequence: int) -> None:
        for cursor in (_FIRST, _WRITING, _COMMITTED):
            self._cursors[cursor] = sequence


def _layout(schema: Schema, capacity: int) -> ArrayLayout:
    """Header and rows, then the fields beside them."""
    beside = (((capacity, *each.shape), np.dtype(each.dtype)) for each in schema.unpacked)
    return ArrayLayout([((8,), np.dtype(np.int64)), ((capacity,), schema.row), *beside])
