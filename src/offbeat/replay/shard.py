"""A ring of rows with exactly one writer, in one flat buffer that could as well be shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from offbeat.types import Array, Chunk, Schema

_ALIGNMENT = 64
_FIRST, _WRITING, _COMMITTED = 0, 1, 2  # the header's cursors; the rest of its 64 bytes is spare


class Shard:
    """The last `capacity` rows of one writer.

    A row is named by its absolute `sequence` (0, 1, 2, ...) and stands at place `sequence % capacity`. float32 fields
    are packed side by side in one row matrix (capacity, width), so that a batch is one gather; every other field is an
    array beside it.

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
        arrays = {
            name: memory[start : start + _size(shape, dtype)].view(dtype).reshape(shape)
            for name, (start, shape, dtype) in layout.items()
        }
        self._cursors = arrays.pop("")
        self.packed: Array = arrays.pop("packed")
        self.restores = 0  # how often `restore` has put other rows here
        self.offsets: dict[str, slice] = _offsets(schema)
        self._columns: dict[str, Array] = {}
        for field in schema:
            if field.name in self.offsets:
                column = self.packed[:, self.offsets[field.name]]
                self._columns[field.name] = column.reshape(capacity, *field.shape)
            else:
                self._columns[field.name] = arrays[f"field {field.name}"]
        self._floats, self._others = [], []
        for field in schema:
            if field.name in self.offsets:
                self._floats.append((field.name, field.size, 1 + len(field.shape)))
            else:
                self._others.append((field.name, self._columns[field.name]))

    @staticmethod
    def nbytes(schema: Schema, capacity: int) -> int:
        """The size of the buffer that a shard needs: header, row matrix, other fields, each 64-byte aligned."""
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
        start, surplus = int(self._cursors[_COMMITTED]), rows - self.capacity
        if surplus > 0:
            self._check(columns, rows)
            columns = {name: column[surplus:] for name, column in columns.items()}
            start, rows = start + surplus, self.capacity
        place, stop = start % self.capacity, start + rows
        # Never back: a write that failed half-way has spoilt the rows under it until they are written over.
        self._cursors[_WRITING] = max(int(self._cursors[_WRITING]), stop)
        if place + rows <= self.capacity:
            self._put(columns, place, rows)
        else:
            self._check(columns, rows)
            head = self.capacity - place
            self._put({name: column[:head] for name, column in columns.items()}, place, head)
            self._put({name: column[head:] for name, column in columns.items()}, 0, rows - head)
        self._cursors[_COMMITTED] = stop

    def _put(self, columns: Mapping[str, Array], place: int, rows: int) -> None:
        """Copies columns to consecutive places: the packed row is one concatenation, every other field a copy."""
        end = place + rows
        try:
            if self._floats:
                parts = [columns[name].reshape(rows, size) for name, size, _ in self._floats]
                np.concatenate(parts, axis=1, out=self.packed[place:end], casting="same_kind")
                fits = all(columns[name].ndim == dimensions for name, _, dimensions in self._floats)
            else:
                fits = True
            for name, store in self._others:
                store[place:end] = columns[name]
                fits = fits and len(columns[name]) == rows
        except (KeyError, ValueError, TypeError):
            self._check(columns, rows)  # says it in words where a column's name or shape is the reason
            raise
        if not fits:
            self._check(columns, rows)

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
        columns = {field.name: self._columns[field.name][places] for field in self.schema}
        return Chunk(columns, worker=self.worker, boot=self.boot, sequence=start)

    def restore(self, chunks: Iterable[Chunk]) -> None:
        """Puts rows back under their own sequences; the chunks follow each other. What was held before is forgotten."""
        self._cursors[:] = 0
        self.restores += 1
        for chunk in chunks:
            if self.committed == 0:
                self._cursors[[_FIRST, _WRITING, _COMMITTED]] = chunk.sequence
            if chunk.sequence != self.committed:
                raise ValueError(
                    f"rows {self.committed} to {chunk.sequence} are missing; chunks must follow each other"
                )
            self.write(chunk)

    def _check(self, columns: Mapping[str, Array], rows: int) -> None:
        for name, shape in ((field.name, field.shape) for field in self.schema):
            column = columns.get(name)
            if column is None:
                raise ValueError(
                    f"the chunk has no column {name!r}; the schema asks for {', '.join(self.schema.names)}"
                )
            if column.shape != (rows, *shape):
                raise ValueError(
                    f"column {name!r} has shape {column.shape}; the schema and {rows} rows ask for {(rows, *shape)}"
                )


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
    parts: list[tuple[str, tuple[int, ...], str]] = [("", (8,), "int64"), ("packed", (capacity, width), "float32")]
    parts += [(f"field {each.name}", (capacity, *each.shape), each.dtype) for each in schema if each.dtype != "float32"]
    layout, start = {}, 0
    for name, shape, dtype in parts:
        layout[name] = (start, shape, dtype)
        start += -(-_size(shape, dtype) // _ALIGNMENT) * _ALIGNMENT
    return layout, start
