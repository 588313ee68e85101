"""Segments of a ring: a save writes only new rows, and lists what the ring holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults import FaultyOs
from offbeat import durable
from offbeat.errors import CheckpointError
from offbeat.replay.chunkfile import DTYPES
from offbeat.replay.segments import SavedShard, SegmentFiles, read_rows
from offbeat.replay.shard import Shard
from offbeat.types import Field, Schema
from rows import SCHEMA, Counting, links


def assert_same(found: Shard, expected: Shard) -> None:
    assert (found.oldest, found.committed) == (expected.oldest, expected.committed)
    if expected.size:
        one, two = (shard.read(shard.oldest, shard.committed) for shard in (found, expected))
        for name in SCHEMA.names:
            np.testing.assert_array_equal(one.columns[name], two.columns[name])
        held = np.arange(expected.oldest, expected.committed) % expected.capacity
        np.testing.assert_array_equal(links(found)[held], links(expected)[held])


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.integers(1, 5_000),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["go on", "resume", "resume with a tail"])), max_size=8),
)
def test_rows_are_restored_whatever_the_segment_size_and_the_save_interval(
    tmp_path_factory: pytest.TempPathFactory, seed: int, capacity: int, segment_bytes: int, saves: list
) -> None:
    directory = tmp_path_factory.mktemp("replay")
    model, shard = Counting(3, seed, share=0.7), Shard(SCHEMA, capacity)
    segments = SegmentFiles(directory, segment_bytes=segment_bytes)
    for steps, then in saves:
        shard.write(model.chunk(steps))
        saved = segments.append(shard)
        assert SavedShard.from_json(saved.to_json(), "saved") == saved
        loaded, loader = Shard(SCHEMA, capacity), SegmentFiles(directory, segment_bytes=segment_bytes)
        loader.resume(saved, loaded)
        assert_same(loaded, shard)
        if then != "go on":
            segments, shard = loader, loaded
        if then == "resume with a tail" and saved.segments:
            with open(directory / saved.segments[-1].name, "ab") as file:
                file.write(b"of a save that was never finished")


def test_appending_writes_only_new_rows(tmp_path: Path) -> None:
    model, shard, segments = Counting(1), Shard(SCHEMA, 10_000), SegmentFiles(tmp_path)
    shard.write(model.chunk(5_000))
    (before,) = segments.append(shard).segments
    shard.write(model.chunk(10))
    (after,) = segments.append(shard).segments
    assert after.name == before.name
    assert 0 < after.length - before.length < 2_000
    assert (after.first, after.last) == (0, 5_009)
    assert durable.size(tmp_path / after.name) == after.length
    assert segments.append(shard).segments == (after,)


def test_segments_roll_over_and_those_that_the_ring_has_overwritten_are_not_listed(tmp_path: Path) -> None:
    model, shard, segments = Counting(1), Shard(SCHEMA, 20), SegmentFiles(tmp_path, segment_bytes=2_000)
    for _ in range(30):
        shard.write(model.chunk(5))
        saved = segments.append(shard)
    assert len(saved.segments) < 6 < len(list(tmp_path.iterdir()))
    assert saved.segments[0].first <= saved.oldest == 130 <= saved.segments[0].last
    assert all(segment.length < 2_000 + 2_000 for segment in saved.segments)


def test_rows_that_were_overwritten_between_saves_are_skipped(tmp_path: Path) -> None:
    model, shard, segments = Counting(1), Shard(SCHEMA, 20), SegmentFiles(tmp_path)
    shard.write(model.chunk(5))
    segments.append(shard)
    shard.write(model.chunk(100))
    saved = segments.append(shard)
    loaded = Shard(SCHEMA, 20)
    SegmentFiles(tmp_path).resume(saved, loaded)
    assert_same(loaded, shard)


def test_bytes_past_the_listed_length_are_neither_read_nor_written_over(tmp_path: Path) -> None:
    model, shard, segments = Counting(1), Shard(SCHEMA, 100), SegmentFiles(tmp_path)
    shard.write(model.chunk(10))
    old = segments.append(shard)
    shard.write(model.chunk(10))
    newer = segments.append(shard)
    back, resumed = Shard(SCHEMA, 100), SegmentFiles(tmp_path)
    resumed.resume(old, back)
    assert back.committed == 10
    back.write(Counting(1, seed=7).chunk(5))
    other = resumed.append(back)
    assert len(other.segments) == 2
    assert sum(len(chunk) for chunk in read_rows(tmp_path, newer)) == 20  # the later checkpoint is still complete
    assert sum(len(chunk) for chunk in read_rows(tmp_path, other)) == 15


def test_a_segment_whose_sync_failed_is_not_written_to_again(tmp_path: Path, monkeypatch) -> None:
    model, shard, segments = Counting(1), Shard(SCHEMA, 100), SegmentFiles(tmp_path)
    shard.write(model.chunk(10))
    before = segments.append(shard)
    shard.write(model.chunk(10))

    class Failing(FaultyOs):
        def fsync(self, descriptor: int) -> None:
            raise OSError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", Failing())
        with pytest.raises(OSError, match="input/output error"):
            segments.append(shard)
    after = segments.append(shard)
    assert after.segments[0] == before.segments[0]
    assert [(segment.first, segment.last) for segment in after.segments] == [(0, 9), (10, 19)]
    assert sum(len(chunk) for chunk in read_rows(tmp_path, after)) == 20


def test_a_ring_of_another_size_takes_the_newest_rows(tmp_path: Path) -> None:
    shard, segments = Shard(SCHEMA, 50), SegmentFiles(tmp_path)
    shard.write(Counting(1).chunk(80))
    saved = segments.append(shard)
    for capacity, held in ((10, 10), (500, 50)):
        other = Shard(SCHEMA, capacity)
        SegmentFiles(tmp_path).resume(saved, other)
        assert (other.size, other.committed) == (held, 80)
        again = Shard(SCHEMA, capacity)
        SegmentFiles(tmp_path).resume(SegmentFiles(tmp_path, "other").append(other), again)
        assert_same(again, other)


def test_rows_of_another_shape_are_refused_with_an_explanation(tmp_path: Path) -> None:
    shard, segments = Shard(SCHEMA, 50), SegmentFiles(tmp_path)
    shard.write(Counting(1).chunk(5))
    saved = segments.append(shard)
    wider = Schema((Field("obs", (4,), "float32"), *SCHEMA.fields[1:]))
    with pytest.raises(CheckpointError, match=r"'obs' as \(\(3,\), 'float32'\), this run's as \(\(4,\), 'float32'\)"):
        SegmentFiles(tmp_path).resume(saved, Shard(wider, 50))
    with pytest.raises(CheckpointError, match="'extra'"):
        SegmentFiles(tmp_path).resume(saved, Shard(Schema((*SCHEMA.fields, Field("extra", (), "bool"))), 50))
    with pytest.raises(CheckpointError, match="worker 1, boot 0"):
        SegmentFiles(tmp_path).resume(saved, Shard(SCHEMA, 50, worker=1))


def test_a_shard_that_went_back_is_refused(tmp_path: Path) -> None:
    shard, segments = Shard(SCHEMA, 50), SegmentFiles(tmp_path)
    shard.write(Counting(1).chunk(5))
    segments.append(shard)
    with pytest.raises(ValueError, match="5 of its rows were already saved"):
        segments.append(Shard(SCHEMA, 50))


@pytest.mark.parametrize(("name", "size"), [("../shard", 10), ("", 10), ("A", 10), ("a/b", 10), ("shard", 0)])
def test_names_and_sizes_that_cannot_be_are_refused(tmp_path: Path, name: str, size: int) -> None:
    with pytest.raises(ValueError, match=r"not a valid shard name|at least 1"):
        SegmentFiles(tmp_path, name, segment_bytes=size)


def test_every_dtype_that_files_hold_survives(tmp_path: Path) -> None:
    schema = Schema((*SCHEMA.fields, *(Field(f"as {dtype}", (2,), dtype) for dtype in DTYPES)))
    shard, chunk = Shard(schema, 10), Counting(2).chunk(3)
    extras = {f"as {dtype}": np.arange(12).reshape(6, 2).astype(dtype) for dtype in DTYPES}
    shard.write(type(chunk)({**chunk.columns, **extras}))
    loaded = Shard(schema, 10)
    SegmentFiles(tmp_path).resume(SegmentFiles(tmp_path).append(shard), loaded)
    for name, column in extras.items():
        np.testing.assert_array_equal(loaded.read(0, 6).columns[name], column)
