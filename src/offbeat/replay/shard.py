"""A ring of rows with exactly one writer, in one flat buffer that could as well be shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from offbeat.types import Array, Chunk, Schema

_ALIGNMENT = 64
_FIRST, _WRITING, _COMMITTED = 0, 1, 2  # the header's cursors; the rest of its 64 bytes is spare
_LINKS = ("env", "episode", "step")
_MOST_ENVIRONMENTS = 1 << 20


class Shard:
    """The last `capacity` rows of one writer.

    A row is named by its absolute `sequence` (0, 1, 2, ...) and stands at place `sequence % capacity`. float32 fields
    are packed side by side in one row matrix (capacity, width), so that a batch is one gather; every other field is an
    array beside it. `successor` (capacity,) int64 holds the sequence of the next step of the same environment and
    episode, or -1 where there is none (yet).

    The rows are one flat ring in the order in which they were made, time-major for a vector of environments, and not an
    array (T, N, ...): environments may contribute unequal numbers of rows (a call that only resets gives none), and the
    links serve any mixture. A row's successor is always written later, so it lives at least as long as the row.

    Rows in [oldest, committed) are whole; those from `committed` up to the header's `writing` may be half-written, and
    `oldest` already excludes the rows that they overwrite. A reader that sees `oldest` pass a row while it copies must
    discard that copy. The shard numbers rows itself: a written chunk's own `sequence` is not looked at.
    """

    def __init__(self, schema: Schema, capacity: int, *, worker: int = 0, boot: int = 0, buffer: Any = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} leaves no room for a row; it must be at least 1")
        missing = [name for name in _LINKS if name not in schema.names or schema[name].shape != ()]
        if missing:
            raise ValueError(f"the schema has no single number {missing[0]!r} per row; rows are linked by {_LINKS}")
        self.schema, self.capacity, self.worker, self.boot = schema, capacity, worker, boot
        layout, total = _layout(schema, capacity)
        # np.zeros maps pages only when they are first written: a large, mostly empty ring costs nothing.
        memory = np.zeros(total, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, count=total)
        if not memory.flags.writeable:
            raise ValueError("the shard's buffer is read-only; give it a writable one")
        arrays = {
            name: memory[start : start + _size(shape, dtype)].view(dtype).reshape(shape)
            for name, (start, shape, dtype) in layout.items()
        }
        self._cursors = arrays.pop("")
        self.packed: Array = arrays.pop("packed")
        self.successor: Array = arrays.pop("successor")
        self.offsets: dict[str, slice] = _offsets(schema)
        self._columns: dict[str, Array] = {}
        for field in schema:
            if field.name in self.offsets:
                column = self.packed[:, self.offsets[field.name]]
                self._columns[field.name] = column.reshape(capacity, *field.shape)
            else:
                self._columns[field.name] = arrays[f"field {field.name}"]
        self._stores = [(field.name, field.shape, self._columns[field.name]) for field in schema]
        self._episode, self._step = self._columns["episode"], self._columns["step"]
        # The writer's own memory: the last sequence of each environment, or -1. It follows from the rows.
        self._last = np.full(64, -1, np.int64)
        self._remember()

    @staticmethod
    def nbytes(schema: Schema, capacity: int) -> int:
        """The size of the buffer that a shard needs: header, row matrix, links, other fields, each 64-byte aligned."""
        return _layout(schema, capacity)[1]

    @property
    def width(self) -> int:
        """Float32 numbers per packed row."""
        return int(self.packed.shape[1])

    @property
    def committed(self) -> int:
        """One past the newest whole row; also the number of rows ever written."""
        return int(self._cursors[_COMMITTED])

    @property
    def oldest(self) -> int:
        """The oldest row that is still whole."""
        return max(int(self._cursors[_FIRST]), int(self._cursors[_WRITING]) - self.capacity)

    @property
    def size(self) -> int:
        """Rows that can be read."""
        return max(0, self.committed - self.oldest)

    def write(self, chunk: Chunk) -> None:
        """Appends the chunk's rows in their order; of a chunk larger than the ring, the last `capacity` rows stay."""
        columns, rows = chunk.columns, len(chunk)
        if rows == 0:
            return
        self._check(columns, rows)
        start, surplus = int(self._cursors[_COMMITTED]), rows - self.capacity
        if surplus > 0:
            columns = {name: column[surplus:] for name, column in columns.items()}
            start, rows = start + surplus, self.capacity
        place, stop = start % self.capacity, start + rows
        # Never back: a write that failed half-way has spoilt the rows under it until they are written over.
        self._cursors[_WRITING] = max(int(self._cursors[_WRITING]), stop)
        if place + rows <= self.capacity:
            for name, _, store in self._stores:
                store[place : place + rows] = columns[name]
            self.successor[place : place + rows] = -1
        else:
            head = self.capacity - place
            for name, _, store in self._stores:
                store[place:] = columns[name][:head]
                store[: rows - head] = columns[name][head:]
            self.successor[place:] = -1
            self.successor[: rows - head] = -1
        if rows == 1:
            self._link_one(columns, start)
        else:
            self._link(columns, start)
        self._cursors[_COMMITTED] = stop

    def gather(self, rows: Array) -> Array:
        """Packed rows (B, width) of the sequences (B,), which must be held; a fresh array."""
        return self.packed.take(rows % self.capacity, axis=0, mode="clip")

    def column(self, name: str) -> Array:
        """A field's whole ring (capacity, *shape), as a view, in order of place."""
        return self._columns[name]

    def read(self, start: int, stop: int) -> Chunk:
        """A copy of the rows [start, stop) with every field of the schema, for saving."""
        if not self.oldest <= start <= stop <= self.committed:
            raise ValueError(
                f"rows {start} to {stop} are not all held: the shard holds {self.oldest} to {self.committed}"
            )
        places = np.arange(start, stop) % self.capacity
        columns = {name: store[places] for name, _, store in self._stores}
        return Chunk(columns, worker=self.worker, boot=self.boot, sequence=start)

    def restore(self, chunks: Iterable[Chunk]) -> None:
        """Puts rows back under their own sequences; the chunks follow each other. What was held before is forgotten."""
        self._cursors[:] = 0
        self._last.fill(-1)
        for chunk in chunks:
            if self.committed == 0:
                self._cursors[[_FIRST, _WRITING, _COMMITTED]] = chunk.sequence
            if chunk.sequence != self.committed:
                raise ValueError(
                    f"rows {self.committed} to {chunk.sequence} are missing; chunks must follow each other"
                )
            self.write(chunk)

    def _check(self, columns: Mapping[str, Array], rows: int) -> None:
        for name, shape, _ in self._stores:
            column = columns.get(name)
            if column is None:
                raise ValueError(
                    f"the chunk has no column {name!r}; the schema asks for {', '.join(self.schema.names)}"
                )
            if column.shape != (rows, *shape):
                raise ValueError(
                    f"column {name!r} has shape {column.shape}; the schema and {rows} rows ask for {(rows, *shape)}"
                )

    def _link_one(self, columns: Mapping[str, Array], sequence: int) -> None:
        """`_link` for a single row, in plain numbers: one environment pays no vector overhead."""
        env = int(columns["env"][0])
        self._make_room(env, env)
        previous = int(self._last[env])
        if previous >= self.oldest:
            place = previous % self.capacity
            if self._episode[place] == columns["episode"][0] and self._step[place] + 1 == columns["step"][0]:
                self.successor[place] = sequence
        self._last[env] = sequence

    def _link(self, columns: Mapping[str, Array], start: int) -> None:
        """Links each new row to the row before it of the same environment, in this chunk or in an earlier one."""
        env, episode, step = (columns[name] for name in _LINKS)
        sequence = np.arange(start, start + len(env))
        newest = sequence
        if (env[1:] <= env[:-1]).any():  # several steps: bring each environment's rows together, in their order
            order = np.argsort(env, kind="stable")
            env, episode, step, sequence = env[order], episode[order], step[order], sequence[order]
            same = env[1:] == env[:-1]
            follows = same & (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
            self.successor[sequence[:-1][follows] % self.capacity] = sequence[1:][follows]
            change = np.flatnonzero(~same)
            first = np.concatenate(([0], change + 1))
            newest = sequence[np.append(change, len(env) - 1)]
            env, episode, step, sequence = env[first], episode[first], step[first], sequence[first]
        self._make_room(int(env[0]), int(env[-1]))
        previous = self._last[env]
        place = previous % self.capacity
        follows = (self._episode[place] == episode) & (self._step[place] + 1 == step) & (previous >= self.oldest)
        self.successor[place[follows]] = sequence[follows]
        self._last[env] = newest

    def _make_room(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= _MOST_ENVIRONMENTS:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"env={wrong} is not an environment's number; a writer counts them from 0, below 2**20")
        if highest >= len(self._last):
            missing = max(highest + 1, 2 * len(self._last)) - len(self._last)
            self._last = np.concatenate([self._last, np.full(missing, -1, np.int64)])

    def _remember(self) -> None:
        """Rebuilds the writer's memory from rows that a given buffer already holds."""
        if self.size:
            sequence = np.arange(self.oldest, self.committed)
            env = self._columns["env"][sequence % self.capacity]
            self._make_room(int(env.min()), int(env.max()))
            self._last[env] = sequence  # of repeated environments the last assignment stays


def _size(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _offsets(schema: Schema) -> dict[str, slice]:
    """Where each float32 field stands in the packed row."""
    offsets, width = {}, 0
    for field in schema:
        if field.dtype == "float32":
            offsets[field.name] = slice(width, width + field.size)
            width += field.size
    return offsets


def _layout(schema: Schema, capacity: int) -> tuple[dict[str, tuple[int, tuple[int, ...], str]], int]:
    """Start, shape and dtype of every array in the buffer, and the buffer's size; "" is the header."""
    width = sum(field.size for field in schema if field.dtype == "float32")
    parts = [("", (8,), "int64"), ("packed", (capacity, width), "float32"), ("successor", (capacity,), "int64")]
    parts += [(f"field {each.name}", (capacity, *each.shape), each.dtype) for each in schema if each.dtype != "float32"]
    layout, start = {}, 0
    for name, shape, dtype in parts:
        layout[name] = (start, shape, dtype)
        start += -(-_size(shape, dtype) // _ALIGNMENT) * _ALIGNMENT
    return layout, start
