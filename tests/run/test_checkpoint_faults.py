"""A save may die, tear or find the disk full at every single file operation: a whole checkpoint is left, old or new."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from faults import Crash, FaultyOs
from offbeat import durable
from offbeat.errors import CheckpointError
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints, Snapshot
from rows import SCHEMA, Counting

CAPACITY, SEGMENT_BYTES = 50, 1_800
OLD, NEW = 150, 195  # rows at the checkpoint that is there, and at the one whose saving fails


def snapshot(rows: int) -> Snapshot:
    return Snapshot({"weight": np.full(50, rows, np.float32)}, {"rows": rows}, {"wall": rows / 10})


class Scene:
    """A run that was saved before (or not), and is about to be saved again."""

    def __init__(self, root: Path, scene: str) -> None:
        self.root, self.model = root, Counting(1)
        self.checkpoints = Checkpoints(root, segment_bytes=SEGMENT_BYTES)
        self.shard = Shard(SCHEMA, CAPACITY)
        self.shard.write(self.model.chunk(OLD))
        if scene != "first":
            self.checkpoints.load_replay("latest", {"0": self.shard})
        self.shard.write(self.model.chunk(NEW - OLD))

    def save(self) -> None:
        self.checkpoints.save(snapshot(NEW), {"0": self.shard}, NEW)


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch) -> None:
    """No test here needs a real fsync outside the save that it watches."""
    monkeypatch.setattr(durable, "os", FaultyOs())


def run_at(root: Path, scene: str) -> None:
    """A run that was never saved ("first"), has two checkpoints and a best one ("later"), or also has what a crashed
    save leaves ("littered"): a folder aside, a torn tail, a lone segment."""
    root.mkdir()
    if scene == "first":
        return
    model, shard = Counting(1), Shard(SCHEMA, CAPACITY)
    checkpoints = Checkpoints(root, segment_bytes=SEGMENT_BYTES)
    for rows in (20, 40, 100, OLD):
        shard.write(model.chunk(rows - shard.committed))
        checkpoints.save(snapshot(rows), {"0": shard}, rows)
    checkpoints.save_best(snapshot(20), 20)
    last = sorted((root / "replay").iterdir())[-1]
    assert last.stat().st_size < SEGMENT_BYTES, "the next save must find a segment to append to"
    if scene == "littered":
        (root / "checkpoints/.aside-step-000000000195").mkdir()
        (root / "checkpoints/.aside-step-000000000195/state.json").write_bytes(b"{")
        last.write_bytes(last.read_bytes() + b"torn")
        (root / "replay/0-000999.chunks").write_bytes(b"lone")


def assert_whole(root: Path, allowed: set[int], log: list) -> int:
    """The run's newest checkpoint is one of those allowed, and nothing of it is missing or mixed."""
    checkpoints = Checkpoints(root)
    found = checkpoints.load()
    rows = found.values["rows"]
    assert rows in allowed
    assert found.notes == snapshot(rows).notes
    np.testing.assert_array_equal(found.arrays["weight"], snapshot(rows).arrays["weight"])
    shard = Shard(SCHEMA, CAPACITY)
    checkpoints.load_replay("latest", {"0": shard})
    assert (shard.oldest, shard.committed) == (max(0, rows - CAPACITY), rows)
    held = np.arange(shard.oldest, shard.committed)
    np.testing.assert_array_equal(shard.gather(held)["obs"], [log[row].obs for row in held])
    return rows


def assert_next_save_works(root: Path, log: list) -> None:
    """From whatever is there, a new process saves a further checkpoint and leaves nothing lying about."""
    checkpoints, shard = Checkpoints(root, segment_bytes=SEGMENT_BYTES), Shard(SCHEMA, CAPACITY)
    if (root / "checkpoints/latest").exists():
        checkpoints.load_replay("latest", {"0": shard})
    model = Counting(1)
    model.chunk(shard.committed)
    shard.write(model.chunk(NEW + 20 - shard.committed))
    assert model.log[:NEW] == log
    checkpoints.save(snapshot(NEW + 20), {"0": shard}, NEW + 20)
    assert assert_whole(root, {NEW + 20}, model.log) == NEW + 20
    assert not [path for path in (root / "checkpoints").iterdir() if path.name.startswith(".aside")]
    listed = {
        segment.name: segment.length
        for name in checkpoints.names()
        for listing in (checkpoints._manifest(name).replay or {}).values()
        for segment in listing.segments
    }
    assert {path.name for path in (root / "replay").iterdir()} == listed.keys()
    for name in checkpoints.names():
        Checkpoints(root).verify(name)


def contents(root: Path) -> dict[Path, bytes | None]:
    """All that is on the disk."""
    return {path.relative_to(root): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def every_fault(
    tmp_path: Path, monkeypatch, mode: str, scene: str, check: Callable[[Scene, BaseException], None]
) -> list[str]:
    """Fails a save at each operation in turn, on a fresh copy of the run; returns the operations of a whole save."""
    template = tmp_path / "template"
    run_at(template, scene)
    for fail_at in range(1_000):
        root = tmp_path / f"run{fail_at}"
        shutil.copytree(template, root)
        run, faulty = Scene(root, scene), FaultyOs(fail_at, mode)
        failure: BaseException | None = None
        with monkeypatch.context() as patch:
            patch.setattr(durable, "os", faulty)
            try:
                run.save()
            except (Crash, CheckpointError) as error:
                failure = error
        if failure is None:
            assert fail_at == faulty.count, f"operation {fail_at} ({faulty.log[fail_at]}) failed without an error"
            return faulty.log
        check(run, failure)
        shutil.rmtree(root)
    raise AssertionError("a save does not end")


@pytest.mark.parametrize(
    ("scene", "mode"),
    [
        ("first", "crash"),
        ("first", "torn"),
        ("later", "crash"),
        ("later", "torn"),
        ("later", "power"),
        ("littered", "torn"),
    ],
)
def test_a_crash_at_any_operation_leaves_the_old_checkpoint_or_the_new(
    tmp_path: Path, monkeypatch, mode: str, scene: str
) -> None:
    seen: set[int] = set()
    checked: list[dict[Path, bytes | None]] = []

    def check(run: Scene, failure: BaseException) -> None:
        assert isinstance(failure, Crash)
        left = contents(run.root)
        if left in checked:  # dying before or after an operation that only reads leaves the same disk
            return
        checked.append(left)
        for name in Checkpoints(run.root).names():  # a folder that has its name is whole, pointed to or not
            Checkpoints(run.root).verify(name)
        if scene != "first":
            seen.add(assert_whole(run.root, {OLD, NEW}, run.model.log))
            assert Checkpoints(run.root).load("best").values["rows"] == 20
        elif (run.root / "checkpoints/latest").exists():
            seen.add(assert_whole(run.root, {NEW}, run.model.log))
        else:
            seen.add(OLD)
            with pytest.raises(CheckpointError, match="no checkpoint 'latest'"):
                Checkpoints(run.root).load()
        assert_next_save_works(run.root, run.model.log)

    operations = every_fault(tmp_path, monkeypatch, mode, scene, check)
    assert seen == {OLD, NEW}
    assert operations.count("write") >= 4 + 2  # arrays, state, manifest and pointer; rows in two segments
    if scene != "first":
        assert {"rmdir", "unlink", "replace"} <= set(operations)
    assert ("ftruncate" in operations) == (scene == "littered")


@pytest.mark.parametrize("scene", ["first", "later", "littered"])
def test_a_full_disk_is_reported_with_a_remedy_and_the_same_process_can_save_again(
    tmp_path: Path, monkeypatch, scene: str
) -> None:
    def check(run: Scene, failure: BaseException) -> None:
        assert isinstance(failure, CheckpointError)
        assert "the disk is full: free some space" in str(failure)
        if scene != "first":
            assert_whole(run.root, {OLD, NEW}, run.model.log)
        run.save()
        assert_whole(run.root, {NEW}, run.model.log)
        assert_next_save_works(run.root, run.model.log)

    every_fault(tmp_path, monkeypatch, "full", scene, check)


@pytest.mark.parametrize("mode", ["crash", "torn", "full"])
def test_the_best_checkpoint_survives_too(tmp_path: Path, monkeypatch, mode: str) -> None:
    template = tmp_path / "template"
    run_at(template, "littered")
    seen, log = set(), Scene(template, "littered").model.log
    for fail_at in range(1_000):
        root = tmp_path / f"run{fail_at}"
        shutil.copytree(template, root)
        faulty = FaultyOs(fail_at, mode)
        with monkeypatch.context() as patch:
            patch.setattr(durable, "os", faulty)
            try:
                Checkpoints(root).save_best(snapshot(50), 50)
                break
            except (Crash, CheckpointError):
                pass
        rows = Checkpoints(root).load("best").values["rows"]
        seen.add(rows)
        assert_whole(root, {OLD}, log)
        Checkpoints(root).save_best(snapshot(55), 55)
        assert Checkpoints(root).load("best").values["rows"] == 55
        assert len([name for name in Checkpoints(root).names() if name.startswith("best")]) == 1
        shutil.rmtree(root)
    assert fail_at == faulty.count
    assert seen == {20, 50}


@pytest.mark.parametrize("scene", ["first", "later"])
def test_repeated_full_disks_do_not_pile_up_files(tmp_path: Path, monkeypatch, scene: str) -> None:
    root = tmp_path / "run"
    run_at(root, scene)
    run = Scene(root, scene)

    class FullOs(FaultyOs):
        def write(self, descriptor: int, data: bytes) -> int:
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", FullOs())
        listings = []
        for _ in range(5):
            with pytest.raises(CheckpointError, match="disk is full"):
                run.save()
            listings.append(sorted(root.rglob("*")))
    assert all(files == listings[0] for files in listings)
    assert not any(path.suffix == ".chunks" for path in listings[0]) or scene == "later"
    run.save()
    assert_whole(root, {NEW}, run.model.log)
