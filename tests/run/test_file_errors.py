"""An operating system error ends a run with a remedy, exit code 1, and `failed` in summary.json."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_asynchronous_faults import command

from offbeat.errors import OffbeatError
from offbeat.observe.console import Console
from offbeat.run.callbacks import ChunkEvent
from offbeat.run.directory import RunDirectory
from offbeat.run.file_errors import explain
from short_runs import train


def refusing(number: int) -> Any:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "is full .* free some space and resume with `offbeat resume"),
        (errno.EROFS, r"cannot be written \(Read-only file system\); make .* writable and resume"),
        (errno.EMFILE, r"too many open files: .* raise the limit \(ulimit -n"),
    ],
)
def test_each_error_has_a_remedy(number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.observe.jsonl.Jsonl.write", refusing(number))
    with pytest.raises(OffbeatError, match=words):
        train(tmp_path, name="run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_an_error_without_a_known_remedy_stays_as_it_is(tmp_path: Path) -> None:
    assert explain(OSError(errno.ENOTSOCK, "Not a socket"), tmp_path) is None
    assert explain(OSError(errno.ENOSPC, "No space left on device"), None) is None


def test_a_removed_run_directory_is_named_in_the_error(tmp_path: Path) -> None:
    class Remove:
        def on_chunk(self, event: ChunkEvent) -> None:
            shutil.rmtree(event.path)

    with pytest.raises(OffbeatError, match="run was removed during the run, so it cannot be resumed"):
        train(tmp_path, name="run", callbacks=[Remove()])


def test_too_few_descriptors_for_collectors_are_not_taken_for_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EMFILE))
    with pytest.raises(OffbeatError, match="too many open files"):
        train(tmp_path, collectors=1)
    assert list(tmp_path.iterdir()) == []


def test_the_status_changes_in_its_place_where_there_is_no_room_for_a_new_summary(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.mark_failed()  # there is none yet
    directory.write_summary({"status": "running", "env_steps": 7})
    directory.mark_failed()
    assert json.loads((tmp_path / "summary.json").read_text()) == {"status": "failed", "env_steps": 7}
    before = (tmp_path / "summary.json").read_bytes()
    directory.mark_failed()
    assert (tmp_path / "summary.json").read_bytes() == before


def test_a_run_that_fails_where_no_summary_can_be_written_is_marked_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fills:
        def on_chunk(self, event: ChunkEvent) -> None:
            monkeypatch.setattr(RunDirectory, "write_summary", refusing(errno.ENOSPC))
            raise RuntimeError("no more")

    with pytest.raises(OffbeatError, match="no more"):
        train(tmp_path, name="run", callbacks=[Fills()])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_config_that_cannot_be_written_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunDirectory, "write_config", refusing(errno.ENOSPC))
    with pytest.raises(OffbeatError, match=r"cannot hold a run: its config.yaml cannot be written \(No space"):
        train(tmp_path, name="run")
    assert list(tmp_path.iterdir()) == []


def test_a_metrics_file_that_cannot_grow_ends_the_run_in_one_paragraph(tmp_path: Path) -> None:
    line = command(tmp_path, "run", total_steps=2_000, log_every=1)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(line, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("offbeat: error: the disk of "), done.stderr
    assert done.stderr.count("\n") == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_to_a_full_device_is_an_error_with_a_remedy() -> None:
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "offbeat", "--version"]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("offbeat: error: cannot write the output (No space left on device)")
    assert done.stderr.count("\n") == 1


def test_a_terminal_that_is_gone_makes_the_console_silent(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        closed_now = False

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            if self.closed_now:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().write(text)

    stream = Gone()
    with Console(tmp_path, 100, stream=stream) as console:
        console.start(["first"])
        stream.closed_now = True
        console.checkpoint(1, tmp_path / "c")
        console.note("a note")
        console.finish(["last"])
    assert console.quiet
