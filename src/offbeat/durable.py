"""The file operations of a save: what returns is on the disk, and a crash leaves the old or the new, never a mixture.

Every operation goes through `os`, looked up when it is called, so that a test can make any one of them fail.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from offbeat.errors import CheckpointError, OffbeatError

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would otherwise translate line ends
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would otherwise wait for ever
_NOT_REGULAR = (errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""What opening a link, a pipe without a reader and a directory for writing gives."""


def open_regular(path: Path | str, flags: int) -> int:
    """The descriptor of a regular file, which may be new. Anything else in its place is refused in words.

    A link would let a run that somebody else made write to any file of ours, and a pipe would make us wait.
    """
    try:
        descriptor = os.open(path, flags | _BINARY | _NO_FOLLOW | _AT_ONCE, 0o644)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _not_regular(path: Path | str) -> OffbeatError:
    mode = os.lstat(path).st_mode
    kinds = {"a link": stat.S_ISLNK, "a directory": stat.S_ISDIR, "a pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK}
    kind = next((words for words, holds in kinds.items() if holds(mode)), "a device")
    return OffbeatError(f"{path} is {kind}, but a run reads and writes regular files alone; remove it and try again")


def create(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes a new file; one that exists already, a link included, is an error."""
    append(path, 0, [data], sync=sync)


def append(path: Path, length: int, pieces: Iterable[bytes], *, sync: bool = True) -> None:
    """Writes the pieces at the end of a file of `length` bytes, or to a new file where `length` is 0."""
    mode = os.O_CREAT | os.O_EXCL if length == 0 else os.O_APPEND
    descriptor = open_regular(path, os.O_WRONLY | mode)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Puts a file in place of the one that may be there, whole.

    sync: waits until it is on the disk. News that a crash may lose need not wait.
    """
    aside = path.with_name(f".{path.name}.aside")
    remove(aside)
    create(aside, data, sync=sync)
    try:
        os.replace(aside, path)
    except IsADirectoryError as error:
        raise _not_regular(path) from error
    if sync:
        fsync_directory(path.parent)


def rename(old: Path, new: Path) -> None:
    """Renames within one directory."""
    os.replace(old, new)
    fsync_directory(new.parent)


def truncate(path: Path, length: int) -> None:
    """Cuts a file off after `length` bytes."""
    descriptor = open_regular(path, os.O_WRONLY)
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


def remove(path: Path) -> None:
    """Removes whatever is there under a name, if anything is."""
    if os.path.lexists(path):
        remove_tree(path)


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


def stay_inside(path: Path, root: Path) -> None:
    """Refuses a path that a link takes out of `root`."""
    if leads_out(path, root):
        raise CheckpointError(f"{path} is a link that leads out of {root}; put what it leads to in its place")
