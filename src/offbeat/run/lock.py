"""The lock of a run: one process holds it at a time, it ends with that process, and it records the holder."""

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

GUARD_TIMEOUT_SECONDS = 10.0
"""Generous: a process holds the guard only for milliseconds, while it takes or reads the lock."""
STALE_SECONDS = 20.0
"""On systems without `flock`: after this time without a heartbeat, the process counts as dead."""


@dataclass(frozen=True)
class Owner:
    """A process, identified so that a later process with the same pid is not mistaken for it.

    started: its start time in clock ticks since boot. host: the machine. space: the machine's boot and, on Linux, the
    pid namespace (container); a pid means the same process only within one space.
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
        """Whether it is on another machine or in another container, so that this process cannot tell if it is alive."""
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

    Processes that an environment forks inherit the lock and may outlive its owner. So if the recorded owner is dead,
    the lock is taken over: a new file replaces the old one. All of this happens under a guard, a short `flock` on the
    directory, so that no process sees a lock without its owner's record and no two processes take over the same one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, directory / ".lock"
        self._held: int | None = None

    def take(self) -> None:
        """Takes the lock for this process; RunBusyError names the process that holds it."""
        if os.name != "posix":
            _check_heartbeat(self._directory)
            return
        with _guard(self._directory):
            descriptor = self._open_locked()
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

            fcntl.flock(self._held, fcntl.LOCK_UN)  # after closing alone, forked processes would still hold it
            os.close(self._held)
            self._held = None

    def _open_locked(self) -> int:
        """Opens and locks the lock file, after removing that of a dead owner."""
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
        """Opens the lock file, and creates it if needed; removes anything in its place that is not a regular file."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(self._path).st_mode):
                os.unlink(self._path)
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)

    def _check_dead(self, owner: Owner | None) -> None:
        """Raises RunBusyError unless the owner of the held lock is dead."""
        if owner is None:
            raise RunBusyError(f"{self._directory} is in use by another process: wait until it ends")
        if owner.is_elsewhere:
            raise RunBusyError(
                f"{self._directory} is running in process {owner.pid} of another machine or container ({owner.host}): "
                "wait until it ends, or stop it there"
            )
        if not owner.is_dead:
            raise RunBusyError(
                f"{self._directory} is running in process {owner.pid}: wait until it ends, or stop it "
                f"(kill {owner.pid})"
            )


@contextlib.contextmanager
def _guard(directory: Path) -> Iterator[None]:
    """A `flock` on the directory, which a process holds while it takes the lock or reads its owner."""
    import fcntl

    until = time.monotonic() + GUARD_TIMEOUT_SECONDS
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        while not _lock(descriptor):
            if time.monotonic() > until:
                raise RunBusyError(f"{directory} is in use by another process: wait until it ends")
            time.sleep(0.01)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Tries to lock a file; False if another process holds the lock."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> Owner | None:
    """The record in a lock file; None if it is not valid."""
    try:
        owner = Owner(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None
    valid = isinstance(owner.pid, int) and 0 < owner.pid < 2**31
    return owner if valid and all(isinstance(each, str) for each in (owner.started, owner.host, owner.space)) else None


def _started(pid: int) -> str | None:
    """The start time of a process, "" if it is not known, None if there is no such process."""
    unreadable: str | None = None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        unreadable = ""  # another user's process, which /proc may hide
    if not Path("/proc/self/stat").exists():
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return unreadable
    return None if fields[0] in "ZX" else fields[19]


def _space() -> str:
    """Identifies the boot and the pid namespace of this process; "" if unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _check_heartbeat(directory: Path) -> None:
    """On systems without `flock`: raises RunBusyError if status.json has a recent heartbeat."""
    try:
        status = json.loads((directory / "status.json").read_text())
    except (OSError, ValueError):
        return
    if status["state"] == "running" and time.time() - status["heartbeat"] < STALE_SECONDS:
        raise RunBusyError(f"{directory} is running in process {status['pid']}: wait until it ends, or stop it")
