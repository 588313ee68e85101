"""The directory of a run is exactly OUT/NAME; anything else is a UsageError and creates nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from offbeat.errors import UsageError
from offbeat.run.directory import RunDirectory
from offbeat.settings import make_config


def create(out: Path | str, **settings: Any) -> Path:
    config = make_config("sac", {"env": "Pendulum-v1", "out": str(out), **settings})
    return RunDirectory.create(config, {"offbeat": "0"}).path


def test_a_run_is_exactly_out_and_name_and_never_an_existing_one(tmp_path: Path) -> None:
    out = tmp_path / "some" / "where"
    assert create(out, name="first") == out / "first"
    assert (out / "first" / "config.yaml").is_file()
    with pytest.raises(UsageError, match=r"first exists already: choose another --name, or resume it with"):
        create(out, name="first")


def test_runs_without_a_name_get_one_each(tmp_path: Path) -> None:
    paths = {create(tmp_path) for _ in range(3)}
    assert len(paths) == 3
    assert {path.parent for path in paths} == {tmp_path}
    assert all(path.name.startswith("sac-Pendulum-v1-0-") for path in paths)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a/", "../a", "a\\b"])
def test_a_name_that_is_not_one_directory_is_wrong_use(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a plain directory name, but the run's directory is OUT/NAME"):
        create(tmp_path / "out", name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [None, "run"])
@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_place_of_out_is_wrong_use(name: str | None, below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"out='.*file.*' cannot hold a run: .* cannot be created \(Not a directory\)"):
        create(tmp_path / "file" / below, name=name)
    assert (tmp_path / "file").read_text() == "mine"


def test_directories_above_a_run_that_cannot_be_made_are_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be created \(File name too long\)"):
        create(tmp_path / "some" / "where", name="n" * 300)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [None, "run"])
@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_wrong_use(name: str | None, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match=r"cannot be created \(Permission denied\)"):
            create(tmp_path, name=name)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that even root cannot write to")
def test_a_file_system_that_takes_no_directories_is_wrong_use() -> None:
    with pytest.raises(UsageError, match=r"out='/proc' cannot hold a run"):
        create("/proc", name="run")
