"""Packing: named columns in, packed rows out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from offbeat.types import Array, Packed, Schema

NO_COLUMNS: Mapping[str, Array] = {}


class Block:
    """A reusable buffer of N packed rows. columns[name] (N, *field.shape) are writable views of it.

    A column that never changes is written once. Fields that are stored beside the row (`Schema.beside`) are not in it.
    """

    def __init__(self, schema: Schema, rows: int) -> None:
        self._rows, self._row, self._count = np.zeros(rows, schema.row), schema.row, rows
        self.columns: dict[str, Array] = {name: self._rows[name] for name in schema.row.names or ()}

    def rows(self, kept: Array | None = None, beside: Mapping[str, Array] = NO_COLUMNS) -> Packed:
        """A copy of the current rows, or of those that `kept` (N,) bool selects, with the columns `beside` them."""
        if kept is None:
            return self._row, self._rows.tobytes(), self._count, beside
        return self._row, self._rows[kept].tobytes(), int(np.count_nonzero(kept)), beside


def pack(columns: Mapping[str, Array], schema: Schema) -> Packed:
    """Packs the columns that the schema names. A missing column or a wrong shape is a ValueError."""
    if missing := [name for name in schema.names if name not in columns]:
        raise ValueError(f"the chunk has no column {missing[0]!r}; the schema requires {', '.join(schema.names)}")
    rows = len(next(iter(columns.values())))
    for field in schema:
        if (shape := columns[field.name].shape) != (rows, *field.shape):
            raise ValueError(
                f"column {field.name!r} has shape {shape}; the schema requires {(rows, *field.shape)} for {rows} rows"
            )
    block = Block(schema, rows)
    for name, column in block.columns.items():
        column[...] = columns[name]
    return block.rows(beside={each.name: np.asarray(columns[each.name], each.dtype) for each in schema.unpacked})
