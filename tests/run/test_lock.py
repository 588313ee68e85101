"""The lock of a run: it names a process that lives, and nothing that a dead one has left behind keeps it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from offbeat.errors import RunBusyError
from offbeat.run.directory import RunDirectory
from offbeat.run.lock import Owner

TAKE = """
import os, signal, sys, time
from pathlib import Path
from offbeat.run.directory import RunDirectory
directory = RunDirectory(Path(sys.argv[1]))
directory.lock()
"""
WAIT = "print(os.getpid(), flush=True); time.sleep(600)"
FORK_AND_DIE = """
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def taken(path: Path, then: str = WAIT) -> Iterator[int]:
    """Another process takes the lock, and does something then; the number that it prints is a process to end."""
    line = [sys.executable, "-c", TAKE + then, str(path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        try:
            if then != WAIT:
                process.wait()
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


def hold(path: Path, record: str) -> int:
    """Holds the lock as a process forked by the recorded owner would."""
    (path / ".lock").write_text(record)
    descriptor = os.open(path / ".lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_run_that_is_running_is_refused_and_its_process_named(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"pid": 1, "state": "running", "heartbeat": 0.0}))
    with taken(tmp_path) as pid, pytest.raises(RunBusyError, match=rf"in process {pid}: .*\(kill {pid}\)"):
        RunDirectory(tmp_path).lock()
    RunDirectory(tmp_path).lock()


def test_what_a_killed_process_has_forked_does_not_keep_the_lock(tmp_path: Path) -> None:
    with taken(tmp_path, FORK_AND_DIE) as orphan:
        first, second = RunDirectory(tmp_path), RunDirectory(tmp_path)
        first.lock()
        with pytest.raises(RunBusyError, match=f"in process {os.getpid()}"):
            second.lock()
        os.kill(orphan, 0)  # it is still there


def test_what_is_forked_does_not_keep_a_lock_that_was_given_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.lock()
    descriptor = directory._lock._held
    assert descriptor is not None
    copy = os.dup(descriptor)  # as a forked process has it
    directory.unlock()
    RunDirectory(tmp_path).lock()
    os.close(copy)


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"started": "1"}])
def test_a_number_that_is_another_process_by_now_is_not_taken_for_the_owner(
    change: dict[str, str | int], tmp_path: Path
) -> None:
    held = hold(tmp_path, json.dumps(asdict(Owner.this_process()) | change))
    RunDirectory(tmp_path).lock()
    os.close(held)


def test_a_zombie_process_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = replace(Owner.this_process(), pid=process.pid, started="")
        assert not owner.is_dead
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert owner.is_dead


@pytest.mark.parametrize("change", [{"host": "other"}, {"space": "another container"}])
def test_an_owner_that_cannot_be_seen_from_here_is_taken_to_live(change: dict[str, str], tmp_path: Path) -> None:
    held = hold(tmp_path, json.dumps(asdict(replace(Owner.this_process(), pid=7)) | change))
    with pytest.raises(RunBusyError, match="process 7 of another machine or container"):
        RunDirectory(tmp_path).lock()
    os.close(held)


@pytest.mark.parametrize("record", ["", "{", "[]", "{}", json.dumps(asdict(Owner.this_process()) | {"pid": "x"})])
def test_a_lock_whose_record_is_damaged_is_respected_while_it_is_held(record: str, tmp_path: Path) -> None:
    held = hold(tmp_path, record)
    with pytest.raises(RunBusyError, match="in use by another process"):
        RunDirectory(tmp_path).lock()
    os.close(held)
    RunDirectory(tmp_path).lock()


def test_a_link_instead_of_the_lock_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").symlink_to(tmp_path / "mine")
    RunDirectory(run).lock()
    assert (tmp_path / "mine").read_text() == "mine"


def test_of_many_that_take_over_the_same_lock_one_gets_it(tmp_path: Path) -> None:
    for attempt in range(20):
        path = tmp_path / str(attempt)
        path.mkdir()
        held = hold(path, json.dumps(asdict(Owner.this_process()) | {"started": "1"}))
        directories, barrier, got = [RunDirectory(path) for _ in range(8)], threading.Barrier(8), []

        def take(directory: RunDirectory, barrier: threading.Barrier = barrier, got: list[RunDirectory] = got) -> None:
            barrier.wait()
            try:
                directory.lock()
            except RunBusyError:
                return
            got.append(directory)

        threads = [threading.Thread(target=take, args=(each,)) for each in directories]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1
        os.close(held)
