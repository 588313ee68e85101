"""Links and special files instead of a run's files: resuming writes nothing outside the run and never blocks."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import offbeat
from offbeat.errors import OffbeatError
from short_runs import train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")

APPENDED = ["metrics.jsonl", "evaluations.jsonl", "log.txt", "trace.json"]
REPLACED = ["summary.json", "status.json", "config.yaml", "policy"]
ASIDE = [".summary.json", ".status.json", *(f".{name}.aside" for name in REPLACED), "policy.new", "policy.old"]
DIRECTORIES = ["tensorboard", "checkpoints", "replay"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(train(tmp_path_factory.mktemp("runs"), name="run", trace=True, logger=("tensorboard",)).path)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A resume that waits for a pipe's reader ends in an error, not never."""

    def ring(number: int, frame: object) -> None:
        raise AssertionError("resuming waits for a pipe")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def move_out(path: Path, outside: Path) -> None:
    """Moves a file or directory away, or makes one there, and leaves a link to it."""
    if path.exists():
        shutil.move(path, outside)
    else:
        outside.write_text("mine")
    path.symlink_to(outside)


def content(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted([path, *path.rglob("*")]) if each.is_file()}


@pytest.mark.parametrize("name", APPENDED)
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_log_that_is_no_regular_file_is_refused_before_anything_changes(run: Path, name: str, kind: str) -> None:
    outside = run.parent / "outside"
    move_out(run / name, outside)
    if kind != "link":
        (run / name).unlink()
        os.mkfifo(run / name) if kind == "pipe" else (run / name).mkdir()
    before, inside = content(outside), content(run)
    with pytest.raises(OffbeatError, match=rf"{name} is a {kind}, but a run reads and writes only regular files"):
        offbeat.resume(run, total_steps=160)
    assert content(outside) == before
    changed = {each for each, data in content(run).items() if inside.get(each) != data} - {str(run / "trace.json")}
    assert changed <= {str(run / "log.txt")}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_that_is_a_link_out_is_refused(run: Path, name: str) -> None:
    outside = run.parent / "outside"
    move_out(run / name, outside)
    before = content(outside)
    with pytest.raises(OffbeatError, match=f"{name}.* is a link to a file outside of"):
        offbeat.resume(run, total_steps=160)
    assert content(outside) == before


def test_links_instead_of_files_that_are_replaced_as_a_whole_are_replaced(run: Path) -> None:
    outside = run.parent / "outside"
    outside.mkdir()
    for name in [*REPLACED, *ASIDE]:
        move_out(run / name, outside / name)
    before = content(outside)
    assert offbeat.resume(run, total_steps=160).status == "finished"
    assert content(outside) == before
    assert not any((run / name).is_symlink() for name in REPLACED)
    assert offbeat.load_policy(run).notes["step"] == 160


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_film_replaces_what_is_in_its_place(run: Path, kind: str) -> None:
    outside = run.parent / "outside"
    outside.write_text("mine")
    (run / "videos").mkdir()
    for suffix in (".mp4", ".gif"):
        film = run / "videos" / f"step-120{suffix}"
        film.symlink_to(outside) if kind == "link" else os.mkfifo(film)
    film = offbeat.evaluate(run, episodes=1, video=True).video
    assert film is not None
    assert film.is_file()
    assert not film.is_symlink()
    assert outside.read_text() == "mine"
