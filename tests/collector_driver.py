"""Drives a collector as a runner does, for tests: allows, polls, counts keys, and compares with the stores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collectors import StoredRows, TakenRollouts, make_context
from counting import Entry
from offbeat.collect import ChunkLedger, Collector, CollectorContext
from offbeat.envs import make_vector
from offbeat.trace import NO_TRACE
from offbeat.types import Array, Chunk
from patience import SECONDS

NUM_ENVS, STEPS = 4, 5


@dataclass(frozen=True)
class Kind:
    """A collector, with an experience of shards or of rollouts. workers: its processes; 0 is this process."""

    make: Callable[[CollectorContext], Collector]
    rollouts: bool = False
    workers: int = 0


class Driver:
    """Does what a runner does: allows steps, polls, counts keys, and takes complete rollouts of its own process."""

    def __init__(
        self, kind: Kind, env: Any, log_dir: Path | None = None, num_envs: int = NUM_ENVS, experience: Any = None
    ) -> None:
        spec = make_vector(env, 1).spec
        self.kind = kind
        usual = TakenRollouts(spec, STEPS) if kind.rollouts else StoredRows(spec, 100_000)
        self.experience: Any = usual if experience is None else experience
        self.context = make_context(
            env, spec, self.experience, num_envs=num_envs, collectors=kind.workers, collect_ahead=8
        )
        if log_dir is not None:
            object.__setattr__(self.context, "make_vector", partial(_logging_vector, env, log_dir))
        self.collector = kind.make(self.context)
        self.ledger, self.notes = ChunkLedger(), list[str]()
        self.chunks: list[Chunk] = []
        self.collector.connect(note=self.notes.append, trace=NO_TRACE, stop=lambda: False)

    @property
    def rows(self) -> int:
        return sum(map(len, self.chunks))

    def poll(self, timeout: float = 0.05) -> int:
        """Returns how many chunks came."""
        chunks = self.collector.poll(timeout)
        self.take(chunks)
        if self.kind.rollouts and not self.kind.workers:
            for queue in self.experience.queues:
                while (rollout := queue.take()) is not None:
                    self.experience.hold([rollout])
        return len(chunks)

    def take(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            assert self.ledger.accept(chunk)
            assert not self.ledger.lost
            self.chunks.append(_copied(chunk))
            # Rows hold the state before their step, which counts the steps of the episode.
            np.testing.assert_array_equal(chunk.columns["carry"][:, 0], chunk.columns["step"])

    def run(self, rows: int) -> None:
        """Until so many rows are polled."""
        until = time.monotonic() + SECONDS
        while self.rows < rows:
            self.collector.allow(rows - 1)
            self.poll()
            assert time.monotonic() < until, f"only {self.rows} of {rows} rows"

    def poll_until(self, rows: int) -> None:
        """Polls, as far as it is allowed, until there are so many rows."""
        until = time.monotonic() + SECONDS
        while self.rows < rows:
            self.poll()
            assert time.monotonic() < until, f"only {self.rows} of {rows} rows"

    def run_all(self, rows: int, envs: Iterable[int] = range(NUM_ENVS), since: int = 0) -> None:
        """Until so many rows are polled, and a row of each of these environments, since this chunk."""
        self.run(rows)
        until = time.monotonic() + SECONDS
        while set(joined(self.chunks[since:])["env"]) != set(envs):
            self.run(self.rows + 50)
            assert time.monotonic() < until, "a worker collects nothing"

    def columns(self) -> dict[str, Array]:
        return joined(self.chunks)

    def stored(self) -> dict[str, Array]:
        """Every row in the stores of the experience, and in rollouts that were taken out of them."""
        if not self.kind.rollouts:
            return joined([shard.read(0, shard.committed) for shard in self.experience.shards.values()])
        parts = [rows[valid] for rows, valid in self.experience.rollouts]
        if not self.kind.workers:
            rows, valid = self.experience.queues[0].filled()
            parts.append(rows[valid])
        rows = np.concatenate(parts)
        return {name: rows[name] for name in rows.dtype.names or ()}


def _logging_vector(env: Any, log_dir: Path, first_env: int, num_envs: int) -> Any:
    """Each worker has a folder of its own for the logs of its environments, named after the first."""
    return partial(_make_logging, env, log_dir / f"{first_env:03}", first_env, num_envs)


def _make_logging(env: Any, log_dir: Path, first_env: int, num_envs: int) -> Any:
    log_dir.mkdir(exist_ok=True)
    return make_vector(env, num_envs, seed=3, first_env=first_env, env_kwargs={"log_dir": str(log_dir)})


def logs(log_dir: Path) -> list[list[Entry]]:
    """Of every environment, in the order of their numbers."""
    files = [
        file
        for folder in sorted(log_dir.iterdir())
        for file in sorted(folder.iterdir(), key=lambda file: int(file.stem.rpartition("-")[2]))
    ]
    return [[Entry(*json.loads(line)) for line in file.read_text().splitlines()] for file in files]


def _copied(chunk: Chunk) -> Chunk:
    columns = {name: np.array(column) for name, column in chunk.columns.items()}
    return Chunk(columns, chunk.sequence, chunk.finished, chunk.calls, chunk.worker, chunk.boot)


def joined(chunks: list[Chunk]) -> dict[str, Array]:
    return {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}


def of_env(columns: dict[str, Array], env: int) -> dict[str, Array]:
    return {name: column[columns["env"] == env] for name, column in columns.items()}
