"""Durable file operations: data is on disk when a call returns, and a crash leaves the old or the new file, whole.

Every operation calls a function of the module `os`, looked up at call time, so that a test can make any of them fail.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from offbeat.errors import CheckpointError, OffbeatError

_BINARY = getattr(os, "O_BINARY", 0)  # otherwise Windows translates line ends
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCKING = getattr(os, "O_NONBLOCK", 0)  # otherwise opening a pipe blocks
_NOT_REGULAR = (errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""Error codes of opening, for writing, a link, a pipe without a reader, and a directory."""


def open_regular(path: Path | str, flags: int) -> int:
    """Opens a regular file, which may be new, and returns its descriptor; raises OffbeatError for any other file type.

    A link could make a run from an untrusted source overwrite any of the user's files; a pipe would block.
    """
    try:
        descriptor = os.open(path, flags | _BINARY | _NO_FOLLOW | _NONBLOCKING, 0o644)
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
    kind = next((name for name, matches in kinds.items() if matches(mode)), "a device")
    return OffbeatError(f"{path} is {kind}, but a run reads and writes only regular files; remove it and try again")


def create(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Writes a new file; raises FileExistsError if the path exists, even as a link."""
    append(path, 0, [data], sync=sync)


def append(path: Path, length: int, pieces: Iterable[bytes], *, sync: bool = True) -> None:
    """Appends the pieces to a file of `length` bytes, or writes them to a new file if `length` is 0."""
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
    """Writes a file atomically: a reader sees the old or the new content, whole.

    sync: wait until the data is on disk; False for data that may be lost in a crash.
    """
    temporary = path.with_name(f".{path.name}.aside")
    remove(temporary)
    create(temporary, data, sync=sync)
    try:
        os.replace(temporary, path)
    except IsADirectoryError as error:
        raise _not_regular(path) from error
    if sync:
        fsync_directory(path.parent)


def rename(old: Path, new: Path) -> None:
    """Renames a file within its directory, durably."""
    os.replace(old, new)
    fsync_directory(new.parent)


def truncate(path: Path, length: int) -> None:
    """Truncates a file to `length` bytes."""
    descriptor = open_regular(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Creates a directory and its missing parents."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directory(path.parent)
        os.mkdir(path)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Syncs a directory's entries to disk; does nothing on Windows, which cannot open a directory."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> None:
    """Removes a file if it exists."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def remove(path: Path) -> None:
    """Removes a file, link or directory tree if it exists."""
    if os.path.lexists(path):
        remove_tree(path)


def remove_tree(path: Path) -> None:
    """Removes a file, or a directory with its content. Links are removed, never followed."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in os.listdir(path):
            remove_tree(path / name)
        os.rmdir(path)
    else:
        os.unlink(path)


def list_names(path: Path) -> list[str]:
    """The sorted names in a directory; [] if it does not exist."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def size(path: Path) -> int | None:
    """The size of a regular file in bytes; None if it does not exist."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def read_file(path: Path, length: int | None = None) -> bytes:
    """The content of a regular file, or its first `length` bytes (fewer if it is shorter)."""
    found = size(path)
    if found is None:  # opening a pipe would block
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


def is_outside(path: Path, root: Path) -> bool:
    """Whether `path` lies outside `root` once links are resolved."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def check_inside(path: Path, root: Path) -> None:
    """Raises CheckpointError if `path` lies outside `root` once links are resolved."""
    if is_outside(path, root):
        raise CheckpointError(f"{path} is a link to a file outside of {root}; replace the link by the file itself")
