"""File operations that survive a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults import Crash, FaultyOs
from offbeat import durable
from offbeat.errors import OffbeatError


def test_a_written_file_replaces_the_old_one_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    durable.write_file(tmp_path / "file", b"old")
    durable.write_file(tmp_path / "file", b"new")
    assert durable.read_file(tmp_path / "file") == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", ["crash", "torn", "power"])
def test_a_crash_at_any_operation_leaves_the_old_file_or_the_new(tmp_path: Path, monkeypatch, mode: str) -> None:
    path = tmp_path / "file"
    seen = set()
    for fail_at in range(100):
        durable.write_file(path, b"old content")
        faulty = FaultyOs(fail_at, mode)
        with monkeypatch.context() as patch:
            patch.setattr(durable, "os", faulty)
            try:
                durable.write_file(path, b"new content")
                break
            except Crash:
                pass
        seen.add(path.read_bytes())
        durable.write_file(path, b"after")
        assert path.read_bytes() == b"after"
    assert fail_at == faulty.count > 5
    assert seen == {b"old content", b"new content"}


def test_a_write_that_takes_only_some_bytes_is_continued(tmp_path: Path, monkeypatch) -> None:
    class Slow(FaultyOs):
        def _perform(self, name, arguments):
            return super()._perform(name, (arguments[0], arguments[1][:3]) if name == "write" else arguments)

    monkeypatch.setattr(durable, "os", Slow())
    durable.create(tmp_path / "file", b"0123456789")
    durable.append(tmp_path / "file", 10, [b"abcde", b"", b"fg"])
    assert durable.read_file(tmp_path / "file") == b"0123456789abcdefg"
    assert durable.read_file(tmp_path / "file", 4) == b"0123"


def test_the_bytes_are_synced_before_the_name_changes_and_the_directory_after(tmp_path: Path, monkeypatch) -> None:
    faulty = FaultyOs()
    monkeypatch.setattr(durable, "os", faulty)
    durable.write_file(tmp_path / "file", b"x")
    order = [name for name in faulty.log if name in ("write", "fsync", "replace")]
    assert order == ["write", "fsync", "replace", "fsync"]


def test_creating_an_existing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "link", b"x")
    assert not (tmp_path / "target").exists()


def test_a_link_in_the_place_of_a_file_aside_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / ".file.aside").symlink_to(tmp_path / "target")
    durable.write_file(tmp_path / "file", b"x")
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_removing_a_tree_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_bytes(b"x")
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "link").symlink_to(tmp_path / "outside")
    durable.remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    assert (tmp_path / "outside" / "precious").exists()


def test_directories_are_made_with_those_above_them_and_made_again(tmp_path: Path) -> None:
    durable.make_directory(tmp_path / "a" / "b" / "c")
    durable.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_truncating_keeps_the_first_bytes(tmp_path: Path) -> None:
    durable.create(tmp_path / "file", b"0123456789")
    durable.truncate(tmp_path / "file", 4)
    assert durable.read_file(tmp_path / "file") == b"0123"


def test_a_missing_path_or_a_directory_has_no_size_and_cannot_be_read(tmp_path: Path) -> None:
    durable.create(tmp_path / "file", b"x")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "directory", "pipe", "file/below"):
        assert durable.size(tmp_path / name) is None
        with pytest.raises(FileNotFoundError):
            durable.read_file(tmp_path / name)
    assert durable.list_names(tmp_path / "missing") == durable.list_names(tmp_path / "file") == []
    durable.remove_file(tmp_path / "missing")


def test_a_link_is_seen_to_lead_out_or_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside").symlink_to(root / "anything")
    (root / "outside").symlink_to(tmp_path)
    assert not durable.is_outside(root / "inside", root)
    assert durable.is_outside(root / "outside" / "file", root)
    assert durable.is_outside(root / ".." / "file", root)


@pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")
def test_only_a_regular_file_is_opened_and_opening_never_blocks(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    kinds = {"link": "a link", "dangling": "a link", "directory": "a directory", "pipe": "a pipe"}
    for name, kind in kinds.items():
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR):
            with pytest.raises(OffbeatError, match=f"{name} is {kind}, but"):
                durable.open_regular(tmp_path / name, flags)
    with pytest.raises(OffbeatError, match="null is a device"):
        durable.open_regular("/dev/null", os.O_WRONLY)
    with pytest.raises(OffbeatError, match="directory is a directory"):
        durable.write_file(tmp_path / "directory", b"new")
    assert not (tmp_path / "new").exists()
    os.close(durable.open_regular(tmp_path / "new", os.O_WRONLY | os.O_CREAT))
    assert (tmp_path / "new").read_bytes() == b""


def test_replacing_a_link_leaves_its_target_unchanged(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    for name in ("file", ".file.aside"):
        (tmp_path / name).symlink_to(tmp_path / "outside")
    durable.write_file(tmp_path / "file", b"new", sync=False)
    assert (tmp_path / "outside").read_bytes() == b"mine"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
