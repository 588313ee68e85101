"""Child processes that are started again when they end, and that end when their parent does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from offbeat.errors import ProcessFault
from offbeat.memory import Memory

FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0
SECONDS_TO_CLOSE = 3.0
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
        self._connection: Connection | None = None
        self._last_words = ""
        self._start_at = 0.0
        self.boots = self.deaths_in_a_row = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def restarts(self) -> int:
        return max(0, self.boots - 1)

    def start(self) -> None:
        """Starts the process, in a session of its own: Ctrl-C is for the parent, which ends it in good order."""
        content = pickle.dumps((sys.path, cloudpickle.dumps(self._job())))
        job = Memory.create(len(content))  # and not a pipe, which a child that does not read would stop up
        job.map()[:] = content
        mine, theirs = socket.socketpair()
        inherited = theirs.fileno(), job.descriptor
        command = [sys.executable, "-m", self._module, *self.name.split(), *map(str, inherited), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            pass_fds=(*inherited, *self._descriptors),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | ONE_THREAD,
        )
        theirs.close()
        job.close()
        self._connection = Connection(mine.detach())
        self.boots, self._last_words = self.boots + 1, ""

    def send(self, message: Any) -> None:
        """Something small. A child that has died does not hear it: its death is noticed by `look`."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(message)

    def receive(self, timeout: float = 0.0) -> Any:
        """The next message of the child, or None where there is none within the time."""
        with contextlib.suppress(EOFError, OSError):
            if self._connection is not None and self._connection.poll(timeout):
                kind, content = self._connection.recv()
                if kind == "failed":
                    self._last_words = content
                    return None
                return kind, content
        return None

    def look(self) -> str | None:
        """Starts the process if it is due; where it has died since the last look, says how."""
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self.start()
            return None
        if (code := self._process.poll()) is None:
            return None
        while self.receive() is not None:
            pass
        self._gone()
        self.deaths_in_a_row += 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (self.deaths_in_a_row - 1))
        self._start_at = time.monotonic() + delay
        words = f"{self.name} {_ended(code)}" + (f":\n{self._last_words}" if self._last_words else "")
        if self.deaths_in_a_row >= self._most_deaths:
            raise ProcessFault(
                f"{words}\n{self.name} has ended {self.deaths_in_a_row} times in a row without getting anywhere, so "
                "the run stops here; mend what ends it (check-env looks for faults of environments), then resume"
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
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self, until: float) -> None:
        """Waits for the process, which has been asked to end, until `until` (monotonic); kills it then."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, until - time.monotonic()))
            self.kill()  # also what it may have left
            self._gone()

    def _gone(self) -> None:
        assert self._connection is not None
        self._connection.close()
        self._process = self._connection = None


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Parent:
    """The child's side: its job, and a way to answer."""

    def __init__(self, arguments: Sequence[str]) -> None:
        connection, self._job, pid = map(int, arguments[-3:])
        _end_with(pid)
        self._connection = Connection(connection)

    def receive(self) -> Any:
        return self._connection.recv()

    def send(self, kind: str, content: Any) -> None:
        self._connection.send((kind, content))

    def run(self, work: Callable[[Parent, Any], None]) -> None:
        """Does the job; what it raises reaches the parent with its traceback."""
        try:
            with open(self._job, "rb") as file:
                file.seek(0)
                sys.path[:], job = pickle.load(file)
            work(self, pickle.loads(job))
        except (BrokenPipeError, EOFError):
            sys.exit(1)  # the parent is gone, and nobody is left to tell
        except BaseException:
            self.send("failed", traceback.format_exc())
            sys.stdout.flush()
            os._exit(1)


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
