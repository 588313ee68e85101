"""Memory that several processes see: it has no name anywhere, and goes with the last process that holds it."""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
import threading
from dataclasses import dataclass

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


def fence() -> None:
    """Other processors see what was written before this no later than what is written after it.

    x86 keeps stores in order by itself. Elsewhere, taking and leaving a lock twice is a full barrier: the release of
    the first and the acquisition of the second cannot change places.
    """
    if not _ORDERED:
        for _ in range(2):
            with _barrier:
                pass
