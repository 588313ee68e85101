"""Packing: whatever the fields, a row holds them aligned and gives them back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.replay.block import Block, pack
from offbeat.replay.chunkfile import DTYPES
from offbeat.types import Array, Chunk, Field, Schema
from rows import SCHEMA, Counting
from specs import vector_spec

shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
schemas = st.lists(st.builds(Field, st.text(min_size=1), shapes, st.sampled_from(DTYPES)), min_size=1).map(
    lambda fields: Schema(tuple({each.name: each for each in fields}.values()))
)


def random_columns(schema: Schema, rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {each.name: (rng.random((rows, *each.shape)) * 100).astype(each.dtype) for each in schema}


@settings(max_examples=200)
@given(schemas, st.integers(0, 5))
def test_packed_columns_come_back_aligned(schema: Schema, rows: int) -> None:
    given_columns = random_columns(schema, rows)
    chunk = Chunk(pack(given_columns, schema))
    assert len(chunk) == rows
    assert set(chunk.columns) == set(schema.names)
    assert len(chunk.columns) == len(schema.names)
    for each in schema:
        column = chunk.columns[each.name]
        assert column.dtype == each.dtype
        np.testing.assert_array_equal(column, given_columns[each.name])
    block = Block(schema, 2)
    assert set(block.columns) | {each.name for each in schema.unpacked} == set(schema.names)
    assert all(column.flags.aligned for column in block.columns.values())


def test_a_row_has_vectors_and_single_numbers_and_little_else() -> None:
    assert Schema.transitions(vector_spec(observation=17, action=6)).row.itemsize == 4 * (17 + 6 + 1 + 17) + 3 * 4 + 4
    extras = Field("camera", (4, 4, 3), "uint8"), Field("carry", (2,), "float64"), Field("grid", (2, 2), "float32")
    schema = Schema((*SCHEMA.fields, *extras))
    assert [each.name for each in schema.unpacked] == ["camera", "carry"]
    assert schema.row["grid"].shape == (2, 2)


def test_rows_are_a_copy_of_what_was_filled_in_and_only_of_what_is_kept() -> None:
    block = Block(SCHEMA, 3)
    block.columns["step"][...] = [4, 5, 6]
    before = Chunk(block.rows())
    block.columns["step"][...] += 10
    after = Chunk(block.rows(np.array([True, False, True])))
    nothing = Chunk(block.rows(np.zeros(3, bool)))
    assert before.columns["step"].tolist() == [4, 5, 6]
    assert after.columns["step"].tolist() == [14, 16]
    assert nothing.columns["obs"].shape == (0, 3)
    assert [len(chunk) for chunk in (before, after, nothing)] == [3, 2, 0]


def test_packed_columns_are_read_only_and_have_no_others() -> None:
    columns = Chunk(pack(Counting(1).chunk(2).columns, SCHEMA)).columns
    with pytest.raises(ValueError, match="read-only"):
        columns["obs"][...] = 0
    with pytest.raises(KeyError, match="expert"):
        columns["expert"]
    assert columns.get("expert") is None
