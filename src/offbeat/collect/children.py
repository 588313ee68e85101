"""Child processes that are started again when they end, and that end when their parent does."""

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

from offbeat.descriptors import occupy_standard
from offbeat.errors import PersistentFault, ProcessFault
from offbeat.memory import Memory

PACKAGE = Path(__file__).parents[1]

FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0
SECONDS_TO_CLOSE = 3.0
MOST_GENERATIONS = 10
"""So often what an environment has started is looked for, in case it starts more while it is being ended."""
SECONDS_BETWEEN_TRIES = 0.1
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PR_SET_PDEATHSIG = 1


class Child:
    """One process, `python -m MODULE NAME...`, that is started again when it ends.

    A death is followed by a pause, which doubles with each further one until there is progress. most_deaths: so many in
    a row without progress end the run. job: what the process is to do, asked for anew at each start; it travels with
    cloudpickle, so that it may hold lambdas. descriptors: what the process inherits.
    """

    def __init__(
        self, name: str, module: str, job: Callable[[], Any], descriptors: Sequence[int], most_deaths: int
    ) -> None:
        self.name, self._module, self._job = name, module, job
        self._descriptors, self._most_deaths = tuple(descriptors), most_deaths
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._received, self._messages = bytearray(), deque[tuple[str, Any]]()
        self._last_words, self._hopeless = "", False
        self._start_at = 0.0
        self._mark = f"OFFBEAT_CHILD_{secrets.token_hex(8)}"
        self.boots = self.deaths_in_a_row = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def restarts(self) -> int:
        return max(0, self.boots - 1)

    def start(self) -> None:
        """Starts the process, in a session of its own: Ctrl-C is for the parent, which ends it in good order."""
        content = pickle.dumps((sys.path, cloudpickle.dumps(self._job())))
        job = Memory.create(len(content))  # and not a pipe, which a child that does not read would stop up
        job.map()[:] = content
        self._socket, theirs = socket.socketpair()
        inherited = theirs.fileno(), job.descriptor
        command = [sys.executable, "-m", self._module, *self.name.split(), *map(str, inherited), str(os.getpid())]
        paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]  # the child is to find this very Offbeat
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
        self.boots, self._last_words = self.boots + 1, ""

    def send(self, message: Any) -> None:
        """Something small. A child that has died does not hear it: its death is noticed by `look`."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                _send(self._socket, message)

    def receive(self) -> tuple[str, Any] | None:
        """The next message of the child, or None where none is whole yet; never waits."""
        self._read()
        return self._messages.popleft() if self._messages else None

    def _read(self) -> None:
        """Takes what has come; a message may come in pieces, and the child may be stopped between two of them."""
        with contextlib.suppress(OSError):  # nothing there, or nobody
            while self._socket is not None and (piece := self._socket.recv(1 << 20, socket.MSG_DONTWAIT)):
                self._received += piece
        while len(self._received) >= 8 and len(self._received) >= 8 + (size := int.from_bytes(self._received[:8])):
            kind, content = pickle.loads(self._received[8 : 8 + size])
            del self._received[: 8 + size]
            if kind in ("failed", "hopeless"):
                self._last_words, self._hopeless = content, kind == "hopeless"
            else:
                self._messages.append((kind, content))

    def look(self) -> str | None:
        """Starts the process if it is due; where it has died since the last look, says how."""
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self.start()
            return None
        if (code := self._process.poll()) is None:
            return None
        self._read()
        self._gone()
        self.deaths_in_a_row += 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (self.deaths_in_a_row - 1))
        self._start_at = time.monotonic() + delay
        words = f"{self.name} {_ended(code)}" + (f":\n{self._last_words}" if self._last_words else "")
        if self._hopeless or self.deaths_in_a_row >= self._most_deaths:
            often = "" if self._hopeless else f"\n{self.name} has ended {self.deaths_in_a_row} times in a row"
            raise ProcessFault(
                f"{words}{often}\nNothing comes of starting it again, so the run stops here; mend what ends it "
                "(check-env looks for faults of environments), then resume"
            )
        return words

    def progressed(self) -> None:
        self.deaths_in_a_row = 0

    def signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once, and whatever it has started."""
        if self._process is not None:
            self._kill_all()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_CLOSE)  # longer only where the kernel itself holds it

    def close(self, until: float) -> None:
        """Waits for the process, which has been asked to end, until `until` (monotonic); kills it then."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, until - time.monotonic()))
            self.kill()
            self._gone()

    def _gone(self) -> None:
        assert self._socket is not None
        self._kill_all()  # what it has started and left
        self._socket.close()
        self._process = self._socket = None

    def _kill_all(self) -> None:
        """Ends its process group, and on Linux what left that group: both inherit the mark in the environment."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for _ in range(MOST_GENERATIONS):
            if not (left := _marked(self._mark)):
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _marked(name: str) -> list[int]:
    """Every process that was started with this variable in its environment; none where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended (a zombie has no environment left), or is somebody else's
            if f"{name}=".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def _send(to: socket.socket, message: Any) -> None:
    """A message with its length in front."""
    to.sendall(_framed(message))


def _framed(message: Any) -> bytes:
    content = pickle.dumps(message)
    return len(content).to_bytes(8) + content


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Parent:
    """The child's side: its job, and a way to answer."""

    def __init__(self, arguments: Sequence[str]) -> None:
        occupy_standard()
        descriptor, self._job, pid = map(int, arguments[-3:])
        _end_with(pid)
        _leave_to_parent(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._socket = socket.socket(fileno=descriptor)

    def receive(self) -> Any:
        """The next message; None when the parent is gone."""
        size = self._exactly(8)
        content = self._exactly(int.from_bytes(size)) if size else b""
        return pickle.loads(content) if content else None

    def _exactly(self, size: int) -> bytes:
        return self._socket.recv(size, socket.MSG_WAITALL)

    def send(self, kind: str, content: Any) -> None:
        _send(self._socket, (kind, content))

    def send_while(self, wanted: Callable[[], bool], kind: str, content: Any) -> None:
        """As `send`, and asks in between whether it is still wanted, where the parent has not read for a while."""
        left = memoryview(_framed((kind, content)))
        while left and wanted():
            if select.select([], [self._socket], [], SECONDS_BETWEEN_TRIES)[1]:
                left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]

    def run(self, work: Callable[[Parent, Any], None]) -> None:
        """Does the job; what it raises reaches the parent with its traceback."""
        try:
            with open(self._job, "rb") as file:
                file.seek(0)
                sys.path[:], job = pickle.load(file)
            work(self, pickle.loads(job))
        except BaseException as error:
            with contextlib.suppress(OSError):  # the parent may be gone, and then nobody is left to tell
                self.send("hopeless" if isinstance(error, PersistentFault) else "failed", traceback.format_exc())
            with contextlib.suppress(OSError):  # whatever stands there may be full, or a reader that has left
                sys.stdout.flush()
            os._exit(1)


def _leave_to_parent(*numbers: int) -> None:
    """Signals that everybody in a terminal or a batch job gets: the parent ends its children in good order.

    Not ignored, since processes that an environment starts would ignore them, too; one that it forks just ends.
    """
    own = os.getpid()

    def heard(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            os._exit(128 + number)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup holds for what an environment starts, too
            signal.signal(number, heard)


def _end_with(parent: int) -> None:
    """This process ends when its parent does, however that ends: by the kernel's hand on Linux, by a look elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we could ask
            os._exit(1)
    else:

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
