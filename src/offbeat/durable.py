"""The file operations of a save: what returns is on the disk, and a crash leaves the old or the new, never a mixture.

Every operation goes through `os`, looked up when it is called, so that a test can make any one of them fail.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would otherwise translate line ends
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def create(path: Path, data: bytes) -> None:
    """Writes a new file; one that exists already, a link included, is an error."""
    append(path, 0, [data])


def append(path: Path, length: int, pieces: Iterable[bytes]) -> None:
    """Writes the pieces at the end of a file of `length` bytes, or to a new file where `length` is 0."""
    mode = os.O_CREAT | os.O_EXCL if length == 0 else os.O_APPEND
    descriptor = os.open(path, os.O_WRONLY | mode | _BINARY | _NO_FOLLOW, 0o644)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Puts a file in place of the one that may be there, whole."""
    aside = path.with_name(f".{path.name}.aside")
    remove_file(aside)
    create(aside, data)
    rename(aside, path)


def rename(old: Path, new: Path) -> None:
    """Renames within one directory."""
    os.replace(old, new)
    fsync_directory(new.parent)


def truncate(path: Path, length: int) -> None:
    """Cuts a file off after `length` bytes."""
    descriptor = os.open(path, os.O_WRONLY | _BINARY | _NO_FOLLOW)
    try:
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Makes a directory, and those above it, where they are missing."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directory(path.parent)
        os.mkdir(path)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Makes the names in a directory durable, where the system can (Windows cannot open a directory)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> None:
    """Removes a file that may be missing."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def remove_tree(path: Path) -> None:
    """Removes a directory with everything in it; links are removed, never followed."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in os.listdir(path):
            remove_tree(path / name)
        os.rmdir(path)
    else:
        os.unlink(path)


def listing(path: Path) -> list[str]:
    """The names in a directory, sorted; none where there is no directory."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def size(path: Path) -> int | None:
    """A regular file's size; None where there is none."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def read_file(path: Path, length: int | None = None) -> bytes:
    """A regular file's bytes, or its first `length` (fewer where it is shorter)."""
    found = size(path)
    if found is None:  # opening a pipe would wait for ever
        raise FileNotFoundError(f"there is no regular file {path}")
    descriptor = os.open(path, os.O_RDONLY | _BINARY)
    try:
        rest = found if length is None else min(found, length)
        pieces = []
        while rest and (piece := os.read(descriptor, rest)):
            pieces.append(piece)
            rest -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def leads_out(path: Path, root: Path) -> bool:
    """Whether a link takes `path` out of `root`."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
