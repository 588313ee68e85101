"""Child processes that are restarted when they end, and that end when their parent does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import cloudpickle

from offbeat.collect.restarts import Restarts
from offbeat.descriptors import occupy_standard
from offbeat.errors import PersistentFault, UsageError
from offbeat.memory import Memory

PACKAGE = Path(__file__).parents[1]

SECONDS_TO_CLOSE = 3.0
MAX_GENERATIONS = 10
"""How often to search for processes that an environment has started, as it may start more while they are killed."""
SECONDS_BETWEEN_ATTEMPTS = 0.1
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PR_SET_PDEATHSIG = 1


def check_sendable(*parts: Any) -> None:
    """Raises UsageError for a part that cloudpickle cannot send to another process."""
    for part in parts:
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise UsageError(
                f"{part} cannot be sent to a collector process: {type(error).__name__}: {error}; make what it holds "
                "(files, locks, connections) inside the factory, or use collectors=0"
            ) from error


class Child:
    """One process, `python -m MODULE NAME...`, that is restarted when it ends.

    max_crashes: as for `Restarts`. job: returns what the process is to do, called at each start; the job is sent with
    cloudpickle, so it may contain lambdas. descriptors: file descriptors that the process inherits.
    """

    def __init__(
        self, name: str, module: str, job: Callable[[], Any], descriptors: Sequence[int], max_crashes: int
    ) -> None:
        self.name, self._module, self._job = name, module, job
        self._descriptors, self.starts = tuple(descriptors), Restarts(name, max_crashes)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received, self._messages = bytearray(), deque[tuple[str, Any]]()
        self._traceback, self._permanent = "", False
        self._mark = f"OFFBEAT_CHILD_{secrets.token_hex(8)}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process in its own session: Ctrl-C reaches only the parent, which then stops its children."""
        content = pickle.dumps((sys.path, cloudpickle.dumps(self._job())))
        job = Memory.create(len(content))  # not a pipe: a child that does not read would block the parent
        job.map()[:] = content
        self._socket, theirs = socket.socketpair()
        inherited = theirs.fileno(), job.descriptor
        command = [sys.executable, "-m", self._module, *self.name.split(), *map(str, inherited), str(os.getpid())]
        paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]  # the child imports the same Offbeat
        self._process = subprocess.Popen(
            command,
            pass_fds=(*inherited, *self._descriptors),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), self._mark: "1"},
        )
        theirs.close()
        job.close()
        self._received = bytearray()
        self.starts.boots += 1
        self._traceback = ""

    def send(self, message: Any) -> None:
        """Sends a small message; it is dropped if the child has ended, which `supervise` notices."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                _send(self._socket, message)

    def receive(self) -> tuple[str, Any] | None:
        """The next complete message of the child, or None; never waits."""
        self._read()
        return self._messages.popleft() if self._messages else None

    def _read(self) -> None:
        """Reads what has arrived. A message may arrive in pieces, and the child may be stopped between two of them."""
        with contextlib.suppress(OSError):  # nothing has arrived, or the child has ended
            while self._socket is not None and (piece := self._socket.recv(1 << 20, socket.MSG_DONTWAIT)):
                self._received += piece
        while len(self._received) >= 8 and len(self._received) >= 8 + (size := int.from_bytes(self._received[:8])):
            kind, content = pickle.loads(self._received[8 : 8 + size])
            del self._received[: 8 + size]
            if kind in ("failed", "failed permanently"):
                self._traceback, self._permanent = content, kind == "failed permanently"
            else:
                self._messages.append((kind, content))

    def supervise(self) -> str | None:
        """Starts the process if a start is due. If it has ended since the last call, returns how."""
        if self._process is None:
            if self.starts.due:
                self.start()
            return None
        if (code := self._process.poll()) is None:
            return None
        self._read()
        self._clean_up()
        return self.starts.ended(_ending(code), self._traceback, self._permanent)

    def signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the process and everything that it has started."""
        if self._process is not None:
            self._kill_all()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_CLOSE)  # takes longer only if the kernel blocks it

    def close(self, until: float) -> None:
        """Waits until `until` (time.monotonic) for a process that was asked to stop; then kills it."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, until - time.monotonic()))
            self.kill()
            self._read()
            self._clean_up()

    def _clean_up(self) -> None:
        assert self._socket is not None
        self._kill_all()  # what it has started and left running
        self._socket.close()
        self._process = self._socket = None

    def _kill_all(self) -> None:
        """Kills its process group and, on Linux, what has left that group: both inherit the mark in the environment."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for _ in range(MAX_GENERATIONS):
            if not (left := _marked(self._mark)):
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _marked(name: str) -> list[int]:
    """Every process that was started with this variable in its environment; none without /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended (a zombie has no environment), or is another user's
            if f"{name}=".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def _send(to: socket.socket, message: Any) -> None:
    """Sends a message, with its length in front."""
    to.sendall(_framed(message))


def _framed(message: Any) -> bytes:
    content = pickle.dumps(message)
    return len(content).to_bytes(8) + content


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Parent:
    """The child's side: receives its job, and sends messages to the parent."""

    def __init__(self, arguments: Sequence[str]) -> None:
        occupy_standard()
        descriptor, self._job, pid = map(int, arguments[-3:])
        end_with(pid, signal.SIGKILL)
        _handle_in_parent(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._socket = socket.socket(fileno=descriptor)

    def receive(self) -> Any:
        """The next message; None if the parent has ended."""
        size = self._exactly(8)
        content = self._exactly(int.from_bytes(size)) if size else b""
        return pickle.loads(content) if content else None

    def _exactly(self, size: int) -> bytes:
        return self._socket.recv(size, socket.MSG_WAITALL)

    def send(self, kind: str, content: Any) -> None:
        _send(self._socket, (kind, content))

    def send_while(self, wanted: Callable[[], bool], kind: str, content: Any) -> None:
        """Sends a message while `wanted()`, which is called again and again if the parent does not read."""
        left = memoryview(_framed((kind, content)))
        while left and wanted():
            if select.select([], [self._socket], [], SECONDS_BETWEEN_ATTEMPTS)[1]:
                left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]

    def run(self, work: Callable[[Parent, Any], None]) -> None:
        """Does the job; an exception is sent to the parent with its traceback."""
        try:
            with open(self._job, "rb") as file:
                file.seek(0)
                sys.path[:], job = pickle.load(file)
            work(self, pickle.loads(job))
        except BaseException as error:
            with contextlib.suppress(OSError):  # the parent may have ended
                kind = "failed permanently" if isinstance(error, PersistentFault) else "failed"
                self.send(kind, traceback.format_exc())
            with contextlib.suppress(OSError):  # the disk may be full, or the reader may have ended
                sys.stdout.flush()
            os._exit(1)


def _handle_in_parent(*numbers: int) -> None:
    """Ignores signals that every process of a terminal or batch job gets: the parent stops its children.

    A handler, not SIG_IGN, which processes that an environment starts would inherit. A forked one just exits.
    """
    own = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            os._exit(128 + number)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # keep the effect of nohup
            signal.signal(number, handle)


def end_with(parent: int, number: int) -> None:
    """This process gets a signal when its parent ends, however that ends: by the kernel on Linux, else by polling."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it ended before the call above
            os.kill(os.getpid(), number)
    else:

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            os.kill(os.getpid(), number)

        threading.Thread(target=watch, daemon=True).start()
