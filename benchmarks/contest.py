"""Interleaved measurements: each contestant has its own process, and one process works at a time, in rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".bench"


@dataclass(frozen=True)
class Entry:
    """A contestant: its name, the module with its class `Contestant`, and its virtual environment (None: this one)."""

    name: str
    module: str
    environment: str | None = None

    @property
    def python(self) -> Path:
        return ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """Whether `make bench` has installed every package of the virtual environment."""
        return self.environment is None or (ENVIRONMENTS / self.environment / ".installed").exists()


@dataclass
class Score:
    """Measurements of one contestant, one number per round, with its package versions and its configuration."""

    name: str
    versions: dict[str, str]
    setting: str
    rounds: list[float] = field(default_factory=list)


class Worker:
    """Starts and calls the process of one contestant."""

    def __init__(self, entry: Entry, threads: int, make: dict[str, Any]) -> None:
        self.entry = entry
        command = [str(entry.python), str(HERE / "worker.py"), entry.module, str(threads)]
        environment = os.environ | {"PYTHONPATH": "", "PYTHONWARNINGS": "ignore", "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        made = self._ask({"make": {"threads": threads, **make}})
        self.score = Score(entry.name, made["versions"], made["setting"])

    def call(self, method: str, *arguments: Any) -> Any:
        """The return value of a method of the contestant."""
        return self._ask({"method": method, "arguments": arguments, "seconds": None})

    def rate(self, seconds: float, method: str, *arguments: Any) -> float:
        """Calls per second of a method of the contestant, measured for at least `seconds`."""
        return float(self._ask({"method": method, "arguments": arguments, "seconds": seconds}))

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.entry.name} ended with exit code {self._process.wait()}; see its messages above")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{self.entry.name} failed:\n{reply['error']}")
        return reply["answer"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def workers(entries: Iterable[Entry], threads: int, **make: Any) -> Iterator[list[Worker]]:
    """Starts the processes of all contestants, one after the other, and closes them at the end."""
    with ExitStack() as stack:
        made = []
        for entry in entries:
            worker = Worker(entry, threads, make)
            stack.callback(worker.close)
            made.append(worker)
        yield made


def compete(contestants: Sequence[Worker], rounds: int, measure: Callable[[Worker], float]) -> list[Score]:
    """Measures every contestant once per round, so that a slow phase of the machine affects all of them.

    Every second round has the reverse order, so that no contestant always follows the same one.
    """
    scores = [Score(each.score.name, each.score.versions, each.score.setting) for each in contestants]
    for number in range(rounds):
        order = range(len(contestants)) if number % 2 == 0 else reversed(range(len(contestants)))
        for index in order:
            scores[index].rounds.append(measure(contestants[index]))
    return scores


def chosen(entries: Sequence[Entry], only: Sequence[str] | None) -> tuple[list[Entry], list[str]]:
    """The entries to measure, and one sentence for each requested entry that is not installed."""
    names = [entry.name for entry in entries]
    if wrong := [name for name in only or () if name not in names]:
        raise SystemExit(f"--only {wrong[0]}: there is no such contestant; use one of {', '.join(names)}")
    wanted = [entry for entry in entries if only is None or entry.name in only]
    skipped = [
        f"{entry.name} was not measured: .bench/{entry.environment} is not installed; run `make bench`"
        for entry in wanted
        if not entry.installed
    ]
    return [entry for entry in wanted if entry.installed], skipped
