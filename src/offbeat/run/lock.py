"""The lock of a run: one process has it at a time, it ends with that process, and it names whoever has it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from offbeat.errors import RunBusyError

SECONDS_FOR_THE_GUARD = 10.0
"""Whoever takes or looks at the lock holds the guard for milliseconds."""
STALE_SECONDS = 20.0
"""Where files cannot be locked, so long without a heartbeat means that the process is gone."""


@dataclass(frozen=True)
class Owner:
    """A process, told apart from a later one of the same number.

    started: when it began, in the kernel's count. host, space: the machine, and which of its processes see each other
    (the boot, and on Linux the container).
    """

    pid: int
    started: str
    host: str
    space: str

    @classmethod
    def this_process(cls) -> Owner:
        pid = os.getpid()
        return cls(pid, _started(pid) or "", os.uname().nodename, _space())

    @property
    def is_elsewhere(self) -> bool:
        """On another machine, or in another container: whether it lives cannot be seen from here."""
        return (self.host, self.space) != (os.uname().nodename, _space())

    @property
    def is_dead(self) -> bool:
        """Whether it has certainly ended."""
        if self.is_elsewhere:
            return False
        started = _started(self.pid)
        return started is None or ("" not in (started, self.started) and started != self.started)


class RunLock:
    """`flock` on RUN/.lock, which holds the owner's record.

    Processes that an environment forks share the lock, and may outlive its owner. So a lock whose recorded owner is
    dead is taken over: the file is replaced by a new one. All of this happens under a guard, a short `flock` on the
    directory, so that nobody sees a lock without its owner's record and no two processes take over the same one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / ".lock"
        self._held: int | None = None

    def take(self) -> None:
        """Takes the lock for this process, or says who has it."""
        if os.name != "posix":
            _check_heartbeat(self._directory)
            return
        with _guard(self._directory):
            descriptor = self._locked()
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(asdict(Owner.this_process())).encode(), 0)
            except BaseException:
                os.close(descriptor)
                raise
        self._held = descriptor

    def release(self) -> None:
        if self._held is not None:
            import fcntl

            fcntl.flock(self._held, fcntl.LOCK_UN)  # closing alone leaves it to forked processes
            os.close(self._held)
            self._held = None

    def _locked(self) -> int:
        """The lock file, locked: the one that is there, or a new one in place of a dead owner's."""
        while True:
            descriptor = self._open()
            try:
                if _lock(descriptor):
                    return descriptor
                self._check_dead(_read(descriptor))
                os.unlink(self._path)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open(self) -> int:
        """The lock file, made where there is none; what stands in its place and is no file is removed."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(self._path).st_mode):
                os.unlink(self._path)
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)

    def _check_dead(self, owner: Owner | None) -> None:
        """Refuses a lock that somebody holds, unless that is only what a dead owner has left."""
        if owner is None:
            raise RunBusyError(f"{self._directory} is in use by another process: wait for it")
        if owner.is_elsewhere:
            raise RunBusyError(
                f"{self._directory} is running in process {owner.pid} of another machine or container ({owner.host}): "
                "wait for it, or stop it there"
            )
        if not owner.is_dead:
            raise RunBusyError(
                f"{self._directory} is running in process {owner.pid}: wait for it, or stop it (kill {owner.pid})"
            )


@contextlib.contextmanager
def _guard(directory: Path) -> Iterator[None]:
    """Held by one process at a time while it takes the lock or looks who has it."""
    import fcntl

    until = time.monotonic() + SECONDS_FOR_THE_GUARD
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        while not _lock(descriptor):
            if time.monotonic() > until:
                raise RunBusyError(f"{directory} is in use by another process: wait for it")
            time.sleep(0.01)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> Owner | None:
    """The record in a lock file; None where it is none."""
    try:
        owner = Owner(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None
    whole = isinstance(owner.pid, int) and 0 < owner.pid < 2**31
    return owner if whole and all(isinstance(each, str) for each in (owner.started, owner.host, owner.space)) else None


def _started(pid: int) -> str | None:
    """When a process began, "" where that cannot be seen, None where there is no such process."""
    unseen: str | None = None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        unseen = ""  # somebody else's, and perhaps hidden from us
    if not Path("/proc/self/stat").exists():
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return unseen
    return None if fields[0] in "ZX" else fields[19]


def _space() -> str:
    """Which processes know each other by their numbers: those of one boot and one container."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _check_heartbeat(directory: Path) -> None:
    """Where files cannot be locked: refuses a run whose status.json was written just now."""
    try:
        status = json.loads((directory / "status.json").read_text())
    except (OSError, ValueError):
        return
    if status["state"] == "running" and time.time() - status["heartbeat"] < STALE_SECONDS:
        raise RunBusyError(f"{directory} is running in process {status['pid']}: wait for it, or stop it")
