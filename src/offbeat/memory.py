"""Memory that several processes see: it has no name anywhere, and goes with the last process that holds it.

Also how much memory there is. A ring takes up room only as it is filled, so the system itself refuses one that is too
large hours later, by ending the run.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from offbeat.errors import UsageError

_ORDERED = platform.machine().lower() in ("x86_64", "amd64")
_barrier = threading.Lock()


@dataclass(frozen=True)
class Memory:
    """So many bytes behind a file descriptor, which a child process inherits under the same number."""

    descriptor: int
    nbytes: int

    @classmethod
    def create(cls, nbytes: int) -> Memory:
        """Zeros, which take up room only once they are written."""
        if os.name != "posix":
            raise UsageError("collector processes need Linux or macOS; use collectors=0, which collects in one process")
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("offbeat")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, nbytes)
        return cls(descriptor, nbytes)

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.descriptor, self.nbytes)

    def close(self) -> None:
        """Gives up the descriptor; what is mapped stays."""
        os.close(self.descriptor)


def check_fits(what: str, nbytes: int, *, filled: int | None = None) -> None:
    """Raises UsageError where `nbytes` are more than there is in all, or those that will be `filled` than are free."""
    total, free = extent()
    if nbytes > total:
        raise UsageError(f"{what} needs {_gib(nbytes)} of memory, and there are {_gib(total)} in all; use less")
    needed = nbytes if filled is None else filled
    if needed > free:
        raise UsageError(
            f"{what} needs {_gib(needed)} of memory, of which {_gib(free)} are free; use less, or end other programs"
        )


def extent() -> tuple[int, int]:
    """Bytes of memory in all and free, of the machine or of the container that we are in; endless where unknown."""
    total = free = sys.maxsize
    with contextlib.suppress(OSError, ValueError, LookupError):  # another system
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        numbers = {
            name: int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
        }
        total = numbers["MemTotal"] + numbers["SwapTotal"]
        free = numbers["MemAvailable"] + numbers["SwapFree"]
    with contextlib.suppress(OSError, ValueError, LookupError):  # no container, or one without a limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
        total, free = min(total, limit), min(free, limit - used + int(cached))
    return total, free


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.1f} GiB"


def fence() -> None:
    """Other processors see what was written before this no later than what is written after it.

    x86 keeps stores in order by itself. Elsewhere, taking and leaving a lock twice is a full barrier: the release of
    the first and the acquisition of the second cannot change places.
    """
    if not _ORDERED:
        for _ in range(2):
            with _barrier:
                pass
