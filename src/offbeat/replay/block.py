"""Rows in the making: named columns in, packed rows out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.types import Array, Packed, Schema

NOTHING: Mapping[str, Array] = {}
ALIGNMENT = 64

Laid = tuple[int, int, tuple[int, ...], np.dtype[Any]]
"""Where an array stands in a buffer: start, length in bytes, shape, dtype."""


def lay_out(parts: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> tuple[list[Laid], int]:
    """Arrays of these shapes and dtypes one after the other, each aligned, and the size of all."""
    layout, start = [], 0
    for shape, dtype in parts:
        length = math.prod(shape) * dtype.itemsize
        layout.append((start, length, shape, dtype))
        start += -(-length // ALIGNMENT) * ALIGNMENT
    return layout, start


class Block:
    """N packed rows to fill, again and again: whoever writes to `columns[name]` (N, *field.shape) writes into them.

    A column that never changes is written once. Fields that stand beside the row are not here.
    """

    def __init__(self, schema: Schema, rows: int) -> None:
        self._rows, self._row, self._count = np.zeros(rows, schema.row), schema.row, rows
        self.columns: dict[str, Array] = {name: self._rows[name] for name in schema.row.names or ()}

    def rows(self, kept: Array | None = None, beside: Mapping[str, Array] = NOTHING) -> Packed:
        """A copy of the rows as they are now, or of those that `kept` (N,) bool marks; `beside` goes with them."""
        if kept is None:
            return self._row, self._rows.tobytes(), self._count, beside
        return self._row, self._rows[kept].tobytes(), int(np.count_nonzero(kept)), beside


def pack(columns: Mapping[str, Array], schema: Schema) -> Packed:
    """The schema's fields of any columns, which are checked: a missing one or a wrong shape is named."""
    if missing := [name for name in schema.names if name not in columns]:
        raise ValueError(f"the chunk has no column {missing[0]!r}; the schema asks for {', '.join(schema.names)}")
    rows = len(next(iter(columns.values())))
    for field in schema:
        if (shape := columns[field.name].shape) != (rows, *field.shape):
            raise ValueError(
                f"column {field.name!r} has shape {shape}; the schema and {rows} rows ask for {(rows, *field.shape)}"
            )
    block = Block(schema, rows)
    for name, column in block.columns.items():
        column[...] = columns[name]
    return block.rows(beside={each.name: np.asarray(columns[each.name], each.dtype) for each in schema.beside})
