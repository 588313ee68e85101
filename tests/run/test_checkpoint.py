"""What a checkpoint holds, keeps, forgets and is compared by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults import FaultyOs
from offbeat import durable
from offbeat.errors import CheckpointError
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints, Snapshot, digest
from offbeat.streams import Streams
from offbeat.types import Chunk
from rows import SCHEMA, Counting


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch) -> None:
    """Without real fsyncs: what they are for is tested elsewhere, and some tests save a hundred times."""
    monkeypatch.setattr(durable, "os", FaultyOs())


def snapshot(step: int = 0) -> Snapshot:
    arrays = {"actor/0/weight": np.arange(6.0, dtype=np.float32).reshape(2, 3) + step, "step": np.array(step)}
    return Snapshot(arrays, {"env_steps": step, "streams": Streams(step).state()}, {"wall": 0.5 * step})


def assert_same_snapshot(found: Snapshot, expected: Snapshot) -> None:
    assert found.values == expected.values
    assert found.notes == expected.notes
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)


class Run:
    """A run in miniature: a ring that is filled step by step, and saved now and then."""

    def __init__(self, root: Path, capacity: int = 40, **settings: Any) -> None:
        self.checkpoints = Checkpoints(root, **settings)
        self.model, self.shard = Counting(2, share=0.8), Shard(SCHEMA, capacity)

    def steps(self, count: int) -> Run:
        for _ in range(count):
            self.shard.write(self.model.chunk(1))
        return self

    def save(self) -> str:
        rows = len(self.model.log)
        return self.checkpoints.save(snapshot(rows), {"0": self.shard}, rows)


def loaded(root: Path, which: str = "latest", capacity: int = 40) -> Shard:
    shard = Shard(SCHEMA, capacity)
    Checkpoints(root).load_replay(which, {"0": shard})
    return shard


def assert_same_rows(found: Shard, model: Counting, committed: int) -> None:
    assert (found.oldest, found.committed) == (max(0, committed - found.capacity), committed)
    held = np.arange(found.oldest, committed)
    np.testing.assert_array_equal(found.gather(held)["obs"], [model.log[row].obs for row in held])


def test_everything_comes_back(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30)
    folder = run.save()
    assert folder == f"step-{len(run.model.log):012d}"
    for which in ("latest", folder):
        assert_same_snapshot(Checkpoints(tmp_path).load(which), snapshot(len(run.model.log)))
        assert_same_rows(loaded(tmp_path, which), run.model, len(run.model.log))
        Checkpoints(tmp_path).verify(which)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(3)
    step, best = run.save(), run.checkpoints.save_best(snapshot(), 3)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    parts = ("arrays.safetensors", "state.json", "manifest.json")
    assert files == {
        *(f"checkpoints/{folder}/{part}" for folder in (step, best) for part in parts),
        *("checkpoints/latest", "checkpoints/best", "replay/0-000001.chunks"),
    }
    assert (tmp_path / "checkpoints/latest").read_text() == f"{step}\n"


def test_awkward_values_survive(tmp_path: Path) -> None:
    values = {
        "nan": math.nan,
        "infinities": [math.inf, -math.inf],
        "big": 2**127 + 1,
        "tiny": 5e-324,
        "nothing": None,
        "yes": True,
        "words": 'ü "\n',
        "nested": {"a": [{"b": -0.0}]},
        "scalar": np.int64(3),
    }
    arrays = {
        "empty": np.zeros((3, 0), np.float32),
        "zero dimensions": np.array(1.5),
        "transposed": np.arange(6).reshape(2, 3).T,
        "nan": np.array([np.nan, -0.0, np.inf]),
        "bool": np.array([True, False]),
        "half": np.ones(2, np.float16),
    }
    Checkpoints(tmp_path).save(Snapshot(arrays, values, {"notes": math.nan}), {}, 0)
    found = Checkpoints(tmp_path).load()
    assert math.isnan(found.values["nan"])
    assert math.isnan(found.notes["notes"])
    assert {**found.values, "nan": 0} == {**values, "nan": 0}
    assert math.copysign(1, found.values["nested"]["a"][0]["b"]) == -1
    assert_same_snapshot(dataclasses.replace(found, values={}, notes={}), Snapshot(arrays))


def test_random_streams_continue_where_they_were(tmp_path: Path) -> None:
    streams = Streams(3)
    streams.noise.normal(size=7)
    Checkpoints(tmp_path).save(Snapshot(values={"streams": streams.state()}), {}, 0)
    restored = Streams(0)
    restored.restore(Checkpoints(tmp_path).load().values["streams"])
    np.testing.assert_array_equal(streams.noise.normal(size=5), restored.noise.normal(size=5))


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Snapshot(arrays={"a": np.array([object()])}), r"arrays\['a'\] is object"),
        (Snapshot(arrays={"a": np.ones(2, complex)}), "complex128"),
        (Snapshot(values={"a": {"b": [{1, 2}]}}), r"a\.b\[0\] is a set"),
        (Snapshot(values={"a": np.zeros(3)}), "arrays"),
        (Snapshot(values={"a": {1: 2}}), "key 1"),
        (Snapshot(values={"a": {"$float": "nan"}}), r"\$float"),
        (Snapshot(values={"a": nested(2_000)}), "nested too deeply"),
    ],
)
def test_what_would_not_come_back_as_it_was_is_refused(tmp_path: Path, wrong: Snapshot, words: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1), {}, 1)
    with pytest.raises(CheckpointError, match=words):
        checkpoints.save(wrong, {}, 2)
    assert_same_snapshot(checkpoints.load(), snapshot(1))


def test_a_resumed_run_appends_to_the_same_segments(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(10)
    run.save()
    resumed = Run(tmp_path)
    resumed.model = run.model
    resumed.checkpoints.load_replay("latest", {"0": resumed.shard})
    resumed.steps(10).save()
    assert [path.name for path in (tmp_path / "replay").iterdir()] == ["0-000001.chunks"]
    assert_same_rows(loaded(tmp_path), run.model, len(run.model.log))


def test_saving_twice_at_a_step_keeps_both_until_the_next(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(3)
    first, second = run.save(), run.save()
    assert second == f"{first}-2"
    assert run.checkpoints.names() == [first, second]
    assert (tmp_path / "checkpoints/latest").read_text() == f"{second}\n"
    third = run.save()
    assert run.checkpoints.names() == [second, third]


def test_the_newest_two_and_the_best_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path)
    saved = []
    for index in range(5):
        saved.append(run.steps(3).save())
        if index in (0, 1):
            best = run.checkpoints.save_best(snapshot(index), index)
    assert run.checkpoints.names() == [*saved[-2:], best]
    assert_same_snapshot(Checkpoints(tmp_path).load("best"), snapshot(1))
    for name in run.checkpoints.names():
        Checkpoints(tmp_path).verify(name)
    with pytest.raises(CheckpointError, match="holds no replay"):
        loaded(tmp_path, "best")


@pytest.mark.parametrize(("keep", "kept"), [(1, [4]), (3, [2, 3, 4]), (None, [0, 1, 2, 3, 4])])
def test_so_many_checkpoints_of_the_line_are_kept_and_each_has_its_replay(
    tmp_path: Path, keep: int | None, kept: list[int]
) -> None:
    run = Run(tmp_path, capacity=10, keep=keep)
    saved = [(run.steps(7).save(), len(run.model.log)) for _ in range(5)]
    assert run.checkpoints.names() == [saved[index][0] for index in kept]
    for name, rows in (saved[index] for index in kept):
        Checkpoints(tmp_path).verify(name)
        assert_same_rows(loaded(tmp_path, name, capacity=10), run.model, rows)


def test_what_a_run_that_went_back_no_longer_has_made_is_not_among_those_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=3)
    saved = [run.steps(3).save() for _ in range(3)]
    again = Run(tmp_path, keep=3)
    again.checkpoints.load_replay(saved[0], {"0": again.shard})
    assert run.checkpoints.names() == saved
    new = again.steps(20).save()
    assert again.checkpoints.names() == [saved[0], new]


@pytest.mark.parametrize("resume", [False, True])
def test_replay_files_stay_bounded_over_many_saves(tmp_path: Path, resume: bool) -> None:
    run = Run(tmp_path, capacity=60, segment_bytes=3_000)
    run.steps(80).save()
    ring = sum(field.size * np.dtype(field.dtype).itemsize for field in SCHEMA) * 60
    largest = 0
    for _ in range(60):
        if resume:
            again = Run(tmp_path, capacity=60, segment_bytes=3_000)
            again.model = run.model
            again.checkpoints.load_replay("latest", {"0": again.shard})
            run = again
        run.steps(6).save()
        largest = max(largest, sum(path.stat().st_size for path in (tmp_path / "replay").iterdir()))
    assert ring < largest < 2 * ring + 4 * 3_000
    assert_same_rows(loaded(tmp_path, capacity=60), run.model, len(run.model.log))


def test_going_on_from_an_older_checkpoint_spares_the_newer_one_until_the_new_line_is_saved(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(10)
    older = run.save()
    newer = run.steps(10).save()
    back = Run(tmp_path)
    back.checkpoints.load_replay(older, {"0": back.shard})
    Checkpoints(tmp_path).verify(newer)
    back.shard.write(Counting(1, seed=9).chunk(3))
    step = back.shard.committed
    name = back.checkpoints.save(snapshot(step), {"0": back.shard}, step)
    assert back.checkpoints.names() == sorted([older, name])
    for kept in (older, name):
        Checkpoints(tmp_path).verify(kept)
    assert loaded(tmp_path).committed == step


def test_a_fresh_object_saves_into_a_run_that_it_did_not_load(tmp_path: Path) -> None:
    first = Run(tmp_path).steps(5).save()
    other = Run(tmp_path).steps(9)
    second = other.save()
    assert set(other.checkpoints.names()) == {first, second}
    for name in (first, second):
        Checkpoints(tmp_path).verify(name)


def test_several_shards_and_none(tmp_path: Path) -> None:
    shards = {f"worker-{index}": Shard(SCHEMA, 20, worker=index) for index in range(3)}
    for index, shard in enumerate(shards.values()):
        shard.write(Counting(1, seed=index).chunk(10 * index))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(), shards, 1)
    again = {name: Shard(SCHEMA, 20, worker=shard.worker) for name, shard in shards.items()}
    Checkpoints(tmp_path).load_replay("latest", again)
    assert [shard.size for shard in again.values()] == [0, 10, 20]
    with pytest.raises(CheckpointError, match="holds the shards"):
        Checkpoints(tmp_path).load_replay("latest", {"worker-0": Shard(SCHEMA, 20)})
    checkpoints.save(snapshot(), {}, 2)
    checkpoints.save(snapshot(), {}, 3)
    assert list((tmp_path / "replay").iterdir()) == []
    checkpoints.save(snapshot(), shards, 4)
    checkpoints.verify()


def test_a_shard_name_must_be_a_valid_file_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a valid shard name"):
        Checkpoints(tmp_path).save(snapshot(), {"../0": Shard(SCHEMA, 4)}, 1)


def test_a_segment_that_vanishes_is_noticed_and_the_next_save_makes_good(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(10)
    run.save()
    (tmp_path / "replay/0-000001.chunks").unlink()
    with pytest.raises(CheckpointError, match="missing or shorter"):
        run.steps(1).save()
    run.save()
    assert_same_rows(loaded(tmp_path), run.model, len(run.model.log))


def test_a_misfit_is_not_reported_as_damage(tmp_path: Path) -> None:
    Run(tmp_path).steps(3).save()
    with pytest.raises(CheckpointError, match="worker 5") as caught:
        Checkpoints(tmp_path).load_replay("latest", {"0": Shard(SCHEMA, 40, worker=5)})
    assert "intact" not in str(caught.value)


# The digest


def test_the_digest_sees_state_and_neither_files_nor_rhythm(tmp_path: Path) -> None:
    digests = set()
    for index, (segment_bytes, every) in enumerate([(1_000, 7), (64 << 20, 50), (2_500, 13), (1, 25)]):
        root = tmp_path / str(index)
        run = Run(root, segment_bytes=segment_bytes)
        for step in range(100):
            run.steps(1)
            if step % every == 0:
                run.save()
            if step == 40 and index == 2:
                again = Run(root, segment_bytes=700)
                run.save()
                again.model = run.model
                again.checkpoints.load_replay("latest", {"0": again.shard})
                run = again
        last = snapshot(100)
        run.checkpoints.save(dataclasses.replace(last, notes={"wall": index}), {"0": run.shard}, 100 + index)
        digests.add(digest(root))
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def _with_array(found: Snapshot, name: str, array: np.ndarray) -> Snapshot:
    return dataclasses.replace(found, arrays={**found.arrays, name: array})


@pytest.mark.parametrize(
    "change",
    [
        lambda found: _with_array(found, "step", np.array(1)),
        lambda found: _with_array(found, "step", np.array([0])),
        lambda found: _with_array(found, "step", np.array(0, np.int32)),
        lambda found: _with_array(found, "another", np.array(0)),
        lambda found: dataclasses.replace(found, values={**found.values, "env_steps": 1}),
    ],
)
def test_the_digest_changes_with_the_snapshot(tmp_path: Path, change: Callable[[Snapshot], Snapshot]) -> None:
    Checkpoints(tmp_path / "a").save(snapshot(), {}, 0)
    Checkpoints(tmp_path / "b").save(change(snapshot()), {}, 0)
    assert digest(tmp_path / "a") != digest(tmp_path / "b")


@pytest.mark.parametrize("field", ["obs", "reward", "version"])
def test_the_digest_changes_with_one_row(tmp_path: Path, field: str) -> None:
    chunk = Counting(1).chunk(6)
    for name, change in (("a", 0), ("b", 1)):
        columns = {key: np.array(column) for key, column in chunk.columns.items()}
        columns[field][3] += change
        shard = Shard(SCHEMA, 10)
        shard.write(Chunk(columns))
        Checkpoints(tmp_path / name).save(snapshot(), {"0": shard}, 6)
    assert digest(tmp_path / "a") != digest(tmp_path / "b")
