"""The ring against a plain list that keeps every row."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.replay.block import Block, pack
from offbeat.replay.nstep import Links
from offbeat.replay.queue import RolloutQueue
from offbeat.replay.shard import Shard
from offbeat.types import Chunk, Field, Schema
from rows import SCHEMA, Counting, columns, links, successor
from specs import vector_spec

counting = st.builds(
    Counting, st.integers(1, 5), st.integers(0, 2**32), st.sampled_from([0.4, 1.0]), st.sampled_from([0.0, 0.3])
)
chunk_steps = st.lists(st.integers(0, 9), max_size=12)


def assert_equals_model(shard: Shard, model: Counting) -> None:
    log = model.log
    assert shard.committed == len(log)
    assert shard.oldest == max(0, len(log) - shard.capacity)
    assert shard.size == len(log) - shard.oldest
    held = np.arange(shard.oldest, shard.committed)
    expected = columns(log[shard.oldest :])
    for name, column in expected.items():
        np.testing.assert_array_equal(shard.column(name)[held % shard.capacity], column.astype(SCHEMA[name].dtype))
    expected_links = np.array([successor(log, sequence) for sequence in held], np.int64)
    np.testing.assert_array_equal(links(shard)[held % shard.capacity], expected_links)


@settings(max_examples=150)
@given(counting, st.integers(1, 40), chunk_steps)
def test_the_ring_holds_the_newest_rows_and_their_successors(model: Counting, capacity: int, steps: list[int]) -> None:
    shard = Shard(SCHEMA, capacity)
    kept = Links(shard)
    for index, count in enumerate(steps):
        shard.write(model.chunk(count))
        assert_equals_model(shard, model)
        if index % 3 != 1:  # links that are brought up to date now and then equal those that are found anew
            kept.update()
            held = np.arange(shard.oldest, shard.committed) % capacity
            np.testing.assert_array_equal(kept.successor[held], links(shard)[held])


@settings(max_examples=60)
@given(counting, st.integers(1, 40), chunk_steps, chunk_steps, st.integers(1, 7))
def test_a_restored_ring_goes_on_as_the_original(
    model: Counting, capacity: int, before: list[int], after: list[int], cut: int
) -> None:
    original = Shard(SCHEMA, capacity)
    for count in before:
        original.write(model.chunk(count))
    starts = range(original.oldest, original.committed, cut)
    restored = Shard(SCHEMA, capacity)
    restored.write(Counting(2).chunk(3))  # forgotten
    kept = Links(restored)
    kept.update()
    restored.restore([original.read(start, min(start + cut, original.committed)) for start in starts])
    assert_equals_model(restored, model)
    for count in after:
        restored.write(model.chunk(count))
        assert_equals_model(restored, model)
        kept.update()
        held = np.arange(restored.oldest, restored.committed) % capacity
        np.testing.assert_array_equal(kept.successor[held], links(restored)[held])


def test_rows_that_started_late_do_not_make_older_ones_appear() -> None:
    small, model = Shard(SCHEMA, 10), Counting(2)
    small.write(model.chunk(50))
    large = Shard(SCHEMA, 1000)
    large.restore([small.read(small.oldest, small.committed)])
    assert (large.oldest, large.committed, large.size) == (90, 100, 10)


def test_a_buffer_given_with_rows_in_it_is_taken_over_by_a_new_writer() -> None:
    buffer = bytearray(Shard.nbytes(SCHEMA, 16))
    model = Counting(3, end=0.1)
    Shard(SCHEMA, 16, buffer=buffer).write(model.chunk(9))
    again = Shard(SCHEMA, 16, buffer=buffer)
    assert_equals_model(again, model)
    again.write(model.chunk(1))
    assert_equals_model(again, model)


def test_the_rows_and_every_array_beside_them_start_on_a_cache_line() -> None:
    schema = Schema((*SCHEMA.fields, Field("camera", (3, 3), "uint8"), Field("carry", (5,), "float64")))
    buffer = np.zeros(Shard.nbytes(schema, 7) + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    shard = Shard(schema, 7, buffer=memoryview(buffer)[start:])
    arrays = [shard.column(name) for name in ("obs", "camera", "carry")]
    assert schema.row.fields is not None
    assert schema.row.fields["obs"][1] == 0
    assert all(array.ctypes.data % 64 == 0 for array in arrays)


def test_a_read_only_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Shard(SCHEMA, 4, buffer=bytes(Shard.nbytes(SCHEMA, 4)))


def test_rows_are_gathered_whole_and_belong_to_the_caller() -> None:
    shard, model = Shard(SCHEMA, 8), Counting(1)
    shard.write(model.chunk(12))
    rows = np.array([11, 4, 7, 7])
    packed = shard.gather(rows)
    assert packed.dtype == SCHEMA.row
    expected = columns([model.log[row] for row in rows])
    for name in SCHEMA.names:
        np.testing.assert_array_equal(packed[name], expected[name].astype(SCHEMA[name].dtype))
    assert not np.shares_memory(packed, shard.column("obs"))


@settings(max_examples=60)
@given(counting, st.integers(1, 20), chunk_steps)
def test_packed_rows_are_written_as_their_columns_are(model: Counting, capacity: int, steps: list[int]) -> None:
    shards = [Shard(SCHEMA, capacity) for _ in range(3)]
    other = Schema(SCHEMA.fields)  # equal, and yet another one: as from another process
    for count in steps:
        chunk = model.chunk(count)
        chunks = chunk, Chunk(pack(chunk.columns, SCHEMA)), Chunk(pack(chunk.columns, other))
        for shard, each in zip(shards, chunks, strict=True):
            assert shard.write(each) == len(each) == len(chunk)
            assert_equals_model(shard, model)


def test_an_interrupted_write_damages_the_rows_under_it_until_they_are_written_again() -> None:
    shard, model = Shard(SCHEMA, 10), Counting(1)
    shard.write(model.chunk(10))
    shard._cursors[1] = 14  # rows 10 to 13 were announced, and may be half-written
    assert (shard.oldest, shard.committed) == (4, 10)
    shard.write(model.chunk(2))
    assert (shard.oldest, shard.committed) == (4, 12)
    shard.write(model.chunk(3))
    assert_equals_model(shard, model)


def test_any_further_field_is_kept_without_the_shard_knowing_of_it() -> None:
    extras = (
        Field("log_prob", (), "float32"),
        Field("grid", (2, 2), "float32"),
        Field("expert", (), "bool"),
        Field("clock", (), "float64"),
        Field("obs/camera", (4, 4, 3), "uint8"),
        Field("carry", (5,), "float64"),
    )
    schema = Schema(SCHEMA.fields + extras)
    shard, model = Shard(schema, 10), Counting(2)
    rng = np.random.default_rng(0)
    further: dict[str, list[np.ndarray]] = {each.name: [] for each in extras}
    for _ in range(4):
        chunk = model.chunk(4)
        made = {each.name: (rng.random((len(chunk), *each.shape)) * 200).astype(each.dtype) for each in extras}
        for name, values in made.items():
            further[name].append(values)
        shard.write(dataclasses.replace(chunk, rows={**chunk.columns, **made}))
    assert_equals_model(shard, model)
    read = shard.read(shard.oldest, shard.committed)
    for each in extras:
        assert read.columns[each.name].dtype == each.dtype
        np.testing.assert_array_equal(read.columns[each.name], np.concatenate(further[each.name])[-10:])


def test_a_lost_step_is_not_linked_over() -> None:
    shard = Shard(SCHEMA, 10)
    chunk = Counting(1, end=0.0).chunk(5)
    kept = np.array([0, 1, 3, 4])
    shard.write(Chunk({name: column[kept] for name, column in chunk.columns.items()}))
    np.testing.assert_array_equal(links(shard)[:4], [1, -1, 3, -1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reward": np.zeros((2, 1))}, r"'reward' has shape \(2, 1\)"),
        ({"obs": np.zeros((2, 4))}, r"'obs' has shape \(2, 4\)"),
        ({"env": np.array([0])}, r"'env' has shape \(1,\)"),
        ({"episode": np.zeros((2, 2), np.int64)}, r"'episode' has shape \(2, 2\)"),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused_before_any_row_changes(change: dict, words: str) -> None:
    shard, model = Shard(SCHEMA, 4), Counting(2, end=0.0)
    shard.write(model.chunk(3))
    wrong = Counting(2, seed=1).chunk(1)
    with pytest.raises(ValueError, match=words):
        shard.write(dataclasses.replace(wrong, rows={**wrong.columns, **change}))
    assert_equals_model(shard, model)
    shard.write(model.chunk(1))
    assert_equals_model(shard, model)


def test_a_missing_column_is_named() -> None:
    chunk = Counting(1).chunk(2)
    with pytest.raises(ValueError, match="no column 'action'"):
        Shard(SCHEMA, 4).write(Chunk({name: value for name, value in chunk.columns.items() if name != "action"}))


def test_rows_that_are_not_held_cannot_be_read() -> None:
    shard = Shard(SCHEMA, 4)
    shard.write(Counting(1).chunk(6))
    with pytest.raises(ValueError, match="holds 2 to 6"):
        shard.read(1, 5)


def test_chunks_that_do_not_follow_each_other_cannot_be_restored() -> None:
    chunks = Counting(1), Shard(SCHEMA, 20)
    chunks[1].write(chunks[0].chunk(10))
    with pytest.raises(ValueError, match="rows 3 to 5 are missing"):
        Shard(SCHEMA, 20).restore([chunks[1].read(0, 3), chunks[1].read(5, 10)])


def test_a_ring_or_links_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity=0"):
        Shard(SCHEMA, 0)
    with pytest.raises(ValueError, match="'step'"):
        Links(Shard(Schema(SCHEMA.fields[:-1]), 4))


@pytest.mark.parametrize("module", ["shard", "queue"])
def test_rows_of_an_equal_schema_that_travelled_here_are_copied_as_they_are(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    mine, theirs = (pickle.loads(pickle.dumps(Schema.transitions(vector_spec()))) for _ in range(2))
    assert mine is not theirs
    assert mine.row is theirs.row
    block = Block(theirs, 2)
    block.columns["reward"][...] = (1.0, 2.0)
    monkeypatch.setattr(f"offbeat.replay.{module}.pack", lambda *_: pytest.fail("the rows were packed again"))
    if module == "shard":
        shard = Shard(mine, 4)
        shard.write(Chunk(block.rows()))
        assert shard.column("reward").tolist() == [1.0, 2.0, 0.0, 0.0]
    else:
        queue = RolloutQueue(mine, 2, 2, 1)
        queue.begin(0)
        queue.write(Chunk(block.rows()), np.ones(2, bool))
        assert queue.filled()[0]["reward"].tolist() == [[1.0, 2.0]]
