"""Contestants side by side: one process each, one at work at a time, in turn round after round."""

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
    """Who takes part: a name, the module with its `Contestant`, and the virtual environment (None is our own)."""

    name: str
    module: str
    environment: str | None = None

    @property
    def python(self) -> Path:
        return ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """`make bench` leaves this mark when every package of the environment is in place."""
        return self.environment is None or (ENVIRONMENTS / self.environment / ".installed").exists()


@dataclass
class Score:
    """One contestant's measurements, a number per round, with what it ran as."""

    name: str
    versions: dict[str, str]
    setting: str
    rounds: list[float] = field(default_factory=list)


class Worker:
    """The parent's end of one contestant's process."""

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
        """What the contestant's method returns."""
        return self._ask({"method": method, "arguments": arguments, "seconds": None})

    def rate(self, seconds: float, method: str, *arguments: Any) -> float:
        """How often per second the contestant's method runs, over at least `seconds`."""
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
    """Every contestant's process, made one after the other, closed at the end."""
    with ExitStack() as stack:
        made = []
        for entry in entries:
            worker = Worker(entry, threads, make)
            stack.callback(worker.close)
            made.append(worker)
        yield made


def compete(contestants: Sequence[Worker], rounds: int, measure: Callable[[Worker], float]) -> list[Score]:
    """Each round measures every contestant once, so that a slow minute of the machine meets all of them.

    The order is turned round in every second round: nobody always follows the same neighbour.
    """
    scores = [Score(each.score.name, each.score.versions, each.score.setting) for each in contestants]
    for number in range(rounds):
        order = range(len(contestants)) if number % 2 == 0 else reversed(range(len(contestants)))
        for index in order:
            scores[index].rounds.append(measure(contestants[index]))
    return scores


def chosen(entries: Sequence[Entry], only: Sequence[str] | None) -> tuple[list[Entry], list[str]]:
    """The entries that take part, and a sentence for each that was asked for and cannot."""
    names = [entry.name for entry in entries]
    if wrong := [name for name in only or () if name not in names]:
        raise SystemExit(f"--only {wrong[0]}: there is no such contestant; there are {', '.join(names)}")
    wanted = [entry for entry in entries if only is None or entry.name in only]
    skipped = [
        f"{entry.name} was not measured: .bench/{entry.environment} is not complete; `make bench` makes it"
        for entry in wanted
        if not entry.installed
    ]
    return [entry for entry in wanted if entry.installed], skipped
