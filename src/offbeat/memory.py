"""Anonymous shared memory, which is freed when the last process that uses it ends, and checks of the memory size.

A replay ring uses memory only as it fills. Without a check before the start, the system would kill a run with too large
a ring hours later.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.errors import UsageError

ALIGNMENT = 64

_STORES_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64")
_barrier = threading.Lock()


@dataclass(frozen=True)
class Memory:
    """`nbytes` of memory behind a file descriptor. A child process inherits it under the same descriptor number."""

    descriptor: int
    nbytes: int

    @classmethod
    def create(cls, nbytes: int) -> Memory:
        """New memory, filled with zeros. Pages use physical memory only once they are written."""
        if os.name != "posix":
            raise UsageError("collector processes need Linux or macOS; use collectors=0 to collect in process")
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
        """Closes the descriptor; existing mappings stay valid."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class ArrayLayout:
    """Arrays of these shapes and dtypes one after the other in a buffer, each aligned."""

    parts: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]

    @property
    def nbytes(self) -> int:
        return sum(-(-length // ALIGNMENT) * ALIGNMENT for length in self._lengths())

    def _lengths(self) -> list[int]:
        return [math.prod(shape) * dtype.itemsize for shape, dtype in self.parts]

    def views(self, buffer: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """The arrays, as views of the buffer's bytes."""
        views, start = [], 0
        for (shape, dtype), length in zip(self.parts, self._lengths(), strict=True):
            views.append(buffer[start : start + length].view(dtype).reshape(shape))
            start += -(-length // ALIGNMENT) * ALIGNMENT
        return views


def check_fits(what: str, nbytes: int, *, filled: int | None = None) -> None:
    """Raises UsageError if `nbytes` exceeds the total memory, or `filled` (default nbytes) exceeds the free memory."""
    total, free = total_and_free()
    if nbytes > total:
        raise UsageError(f"{what} needs {_gib(nbytes)} of memory, but the machine has only {_gib(total)}; use less")
    needed = nbytes if filled is None else filled
    if needed > free:
        raise UsageError(
            f"{what} needs {_gib(needed)} of memory, but only {_gib(free)} are free; use less, or end other programs"
        )


def total_and_free() -> tuple[int, int]:
    """Total and free memory in bytes, of the machine or its container; sys.maxsize where unknown."""
    total = free = sys.maxsize
    with contextlib.suppress(OSError, ValueError, LookupError):  # not Linux
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        numbers = {
            name: int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")
        }
        total = numbers["MemTotal"] + numbers["SwapTotal"]
        free = numbers["MemAvailable"] + numbers["SwapFree"]
    with contextlib.suppress(OSError, ValueError, LookupError):  # no container, or no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
        total, free = min(total, limit), min(free, limit - used + int(cached))
    return total, free


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.1f} GiB"


def fence() -> None:
    """Memory barrier: other processors see writes made before it no later than writes made after it.

    x86 already keeps stores in order. On other processors, acquiring and releasing a lock twice is a full barrier: the
    first release and the second acquisition cannot be reordered.
    """
    if not _STORES_IN_ORDER:
        for _ in range(2):
            with _barrier:
                pass
