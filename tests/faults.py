"""An `os` that fails where it is told to, to put in the place of `offbeat.durable.os`."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

OPERATIONS = {
    *("open", "read", "write", "fsync", "close", "ftruncate", "replace", "mkdir", "unlink", "rmdir"),
    *("listdir", "stat", "lstat"),
}


class Crash(BaseException):
    """The process is gone: nothing catches it, and no operation after it has any effect."""


class FaultyOs:
    """Counts operations and fails at number `fail_at`, once (disk full) or for good (a dead process).

    mode "crash": dies before the operation. "torn": dies after it, a write having written half of its bytes.
    "power": dies before it, and bytes that were not fsynced are lost. "full": no space left, then all is well again.
    """

    def __init__(self, fail_at: int = -1, mode: str = "crash") -> None:
        self.fail_at, self.mode, self.count, self.dead = fail_at, mode, 0, False
        self.log: list[str] = []
        self._open: set[int] = set()
        self._unsynced: dict[int, tuple[int, int]] = {}  # descriptor: (a copy of it, the length that is safe)

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATIONS:
            return getattr(os, name)
        return lambda *arguments: self._operate(name, arguments)

    def _operate(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self.dead:
            raise Crash
        self.log.append(name)
        self.count += 1
        if self.count - 1 != self.fail_at:
            return self._perform(name, arguments)
        if self.mode == "full":
            if name == "close":
                self._perform(name, arguments)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.mode == "torn":
            half = (arguments[0], arguments[1][: len(arguments[1]) // 2]) if name == "write" else arguments
            with contextlib.suppress(OSError):  # it may have failed by itself
                self._perform(name, half)
        self._die()
        raise Crash

    def _perform(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "write":
            descriptor = arguments[0]
            if descriptor not in self._unsynced:
                self._unsynced[descriptor] = os.dup(descriptor), os.fstat(descriptor).st_size
        if name == "fsync":  # counted, not performed: the disk of a test need not be durable
            copy, _ = self._unsynced.pop(arguments[0], (None, 0))
            if copy is not None:
                os.close(copy)
            return None
        result = getattr(os, name)(*arguments)
        if name == "open":
            self._open.add(result)
        if name == "close":
            self._open.discard(arguments[0])
        return result

    def _die(self) -> None:
        self.dead = True
        for copy, length in self._unsynced.values():
            if self.mode == "power":
                os.ftruncate(copy, length)
            os.close(copy)
        for descriptor in self._open:
            os.close(descriptor)
