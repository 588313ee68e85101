"""A ring of rows with exactly one writer, in one flat buffer that could as well be shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from offbeat.memory import fence
from offbeat.replay.block import Laid, lay_out, pack
from offbeat.types import Array, Chunk, Packed, Schema

_FIRST, _WRITING, _COMMITTED = 0, 1, 2  # the header's cursors; the rest of its 64 bytes is spare


class NotHeld(ValueError):
    """Rows that are not in the ring, or no longer."""


class Shard:
    """The last `capacity` rows of one writer.

    A row is named by its absolute `sequence` (0, 1, 2, ...) and stands at place `sequence % capacity`. The packed
    fields of the schema are one array of rows (capacity,), so that a batch is one gather and a write one copy; every
    other field is an array beside it.

    The rows are one flat ring in the order in which they were made, time-major for a vector of environments, and not an
    array (T, N, ...): environments may contribute unequal numbers of rows (a call that only resets gives none). Which
    row follows which is found by `Links`, where somebody asks.

    Rows in [oldest, committed) are whole; those from `committed` up to the header's `writing` may be half-written, and
    `oldest` already excludes the rows that they overwrite. A reader that sees `oldest` pass a row while it copies must
    discard that copy. The shard numbers rows itself: a written chunk's own `sequence` is not looked at.
    """

    def __init__(self, schema: Schema, capacity: int, *, worker: int = 0, boot: int = 0, buffer: Any = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} leaves no room for a row; it must be at least 1")
        self.schema, self.capacity, self.worker, self.boot = schema, capacity, worker, boot
        layout, total = _layout(schema, capacity)
        # np.zeros maps pages only when they are first written: a large, mostly empty ring costs nothing.
        memory = np.zeros(total, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, count=total)
        if not memory.flags.writeable:
            raise ValueError("the shard's buffer is read-only; give it a writable one")
        header, self._rows, *others = (
            memory[start : start + length].view(dtype).reshape(shape) for start, length, shape, dtype in layout
        )
        # Plain memory views: over so little, an array's own assignment takes several times as long.
        self._cursors, self._bytes = header.data, self._rows.view(np.uint8).data
        self._row, self._width = schema.row, schema.row.itemsize
        self._beside = {field.name: array for field, array in zip(schema.beside, others, strict=True)}
        self._columns = {name: self._rows[name] for name in schema.row.names or ()} | self._beside
        self.restores = 0  # how often `restore` has put other rows here

    @staticmethod
    def nbytes(schema: Schema, capacity: int) -> int:
        """The size of the buffer that a shard needs: header, packed rows, other fields, each 64-byte aligned."""
        return _layout(schema, capacity)[1]

    @property
    def committed(self) -> int:
        """One past the newest whole row; also the number of rows ever written."""
        return self._cursors[_COMMITTED]

    @property
    def oldest(self) -> int:
        """The oldest row that is still whole."""
        first, following = self._cursors[_FIRST], self._cursors[_WRITING] - self.capacity
        return first if first > following else following

    @property
    def size(self) -> int:
        """Rows that can be read."""
        return max(0, self.committed - self.oldest)

    def write(self, chunk: Chunk) -> int:
        """Appends the chunk's rows in their order; of a chunk larger than the ring, the last `capacity` rows stay.

        Returns how many rows came.
        Columns that are not packed yet, or that stand beside the row, are checked and packed first: a chunk that does
        not fit is refused before any row changes.
        """
        rows, cursors = chunk.rows, self._cursors
        if not isinstance(rows, tuple) or rows[0] is not self._row or self._beside:
            rows = pack(chunk.columns, self.schema)
        _, data, count, _ = rows
        start = cursors[_COMMITTED]
        stop = start + count
        # Never back: a write that was interrupted half-way has spoilt the rows under it until they are written over.
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
        """Copies rows that end before `stop` in up to two pieces, and what stands beside them."""
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
        """The packed rows (B,) of the sequences (B,), which must be held: a fresh structured array of the fields."""
        return self._rows.take(rows % self.capacity, mode="clip")

    def column(self, name: str) -> Array:
        """A field's whole ring (capacity, *shape), as a view, in order of place."""
        return self._columns[name]

    def read(self, start: int, stop: int) -> Chunk:
        """A copy of the rows [start, stop) with every field of the schema, for saving."""
        if not self.oldest <= start <= stop <= self.committed:
            raise NotHeld(f"rows {start} to {stop} are not all held: the shard holds {self.oldest} to {self.committed}")
        sequence = np.arange(start, stop)
        beside = {name: array[sequence % self.capacity] for name, array in self._beside.items()}
        rows = self._row, self.gather(sequence).tobytes(), stop - start, beside
        fence()
        if start < self.oldest:
            raise NotHeld(f"rows from {start} on were written over while they were read: {self.oldest} is the oldest")
        return Chunk(rows, worker=self.worker, boot=self.boot, sequence=start)

    def look(self, start: int, stop: int) -> Iterator[Chunk]:
        """The rows [start, stop) where they stand, in one piece or two: good until the writer comes round again."""
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
        """Marks every row as truncated after which its environment went on with another episode, without an end."""
        held = np.arange(self.oldest, self.committed) % self.capacity
        held = held[np.argsort(self._columns["env"][held], kind="stable")]
        env, episode, terminated, truncated = (
            self._columns[name][held] for name in ("env", "episode", "terminated", "truncated")
        )
        gap = (env[1:] == env[:-1]) & (episode[1:] != episode[:-1]) & ~terminated[:-1] & ~truncated[:-1]
        self._columns["truncated"][held[:-1][gap]] = True

    def cut(self, env: int | None = None) -> None:
        """Marks the newest row of an environment, or of each, as truncated where it ended nothing: nothing follows it.

        For the writer alone, when an episode cannot go on.
        """
        columns = [self._columns[name] for name in ("env", "terminated", "truncated")]
        held = np.arange(self.committed - 1, self.oldest - 1, -1) % self.capacity
        envs = columns[0][held]
        wanted = np.unique(envs) if env is None else [env]
        for each in wanted:
            if len(found := np.flatnonzero(envs == each)[:1]):
                place = held[found[0]]
                columns[2][place] |= not columns[1][place]

    def restore(self, chunks: Iterable[Chunk]) -> None:
        """Puts rows back under their own sequences; the chunks follow each other. What was held before is forgotten."""
        self._begin(0)
        self.restores += 1
        for chunk in chunks:
            if self.committed == 0:
                self._begin(chunk.sequence)
            if chunk.sequence != self.committed:
                raise ValueError(
                    f"rows {self.committed} to {chunk.sequence} are missing; chunks must follow each other"
                )
            self.write(chunk)

    def _begin(self, sequence: int) -> None:
        for cursor in (_FIRST, _WRITING, _COMMITTED):
            self._cursors[cursor] = sequence


def _layout(schema: Schema, capacity: int) -> tuple[list[Laid], int]:
    """Start, length in bytes, shape and dtype of every array in the buffer, header and rows first, and its size."""
    parts: list[tuple[tuple[int, ...], np.dtype[Any]]] = [((8,), np.dtype(np.int64)), ((capacity,), schema.row)]
    parts += [((capacity, *each.shape), np.dtype(each.dtype)) for each in schema.beside]
    return lay_out(parts)
