"""The migration example, as processes: it runs, it resumes after `kill -9`, and it learns."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import tmrl_processes
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.lock import Owner
from patience import SECONDS, wait_until


class Pipeline:
    """The example's parts, each started and killed on its own."""

    def __init__(self, directory: Path, **options: int) -> None:
        self.directory = directory
        self.options = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self._processes: list[BaseProcess] = []

    def start(self, role: str) -> BaseProcess:
        name = f"{role} {len(self._processes)}"
        self._processes.append(tmrl_processes.start(self.directory, name, [role, "--out", "out", *self.options]))
        return self._processes[-1]

    def kill(self, process: BaseProcess) -> None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(SECONDS)
        assert process.exitcode == -signal.SIGKILL

    def finish(self, process: BaseProcess) -> None:
        process.join(SECONDS)
        printed = [path.read_text() for path in self.directory.glob("trainer *")]
        assert process.exitcode == 0, printed

    def values(self) -> dict[str, Any]:
        """Counters and received buffers of the newest checkpoint."""
        return dict(Checkpoints(self.directory / "out" / "checkpoint").load().values)

    def has_epoch(self, epoch: int) -> bool:
        return (self.directory / "out/checkpoint/checkpoints/latest").exists() and self.values()["epoch"] >= epoch

    def taken(self) -> list[Path]:
        """Buffers that the trainer has taken and not saved."""
        return list(self.directory.glob("offbeat-tmrl-*/*/taken/*.chunks"))

    def is_over(self) -> bool:
        """Whether every process that held a place has ended."""
        locks = [json.loads(path.read_text() or "null") for path in self.directory.rglob(".lock")]
        return all(owner is not None and Owner(**owner).is_dead for owner in locks)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(SECONDS)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(tmp_path, epochs=4, rounds=1, steps=300)
    yield made
    made.close()


def test_the_example_resumes_after_all_of_it_was_killed(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, epochs=2, rounds=1, steps=100)
    try:
        example = pipeline.start("all")
        wait_until(lambda: pipeline.has_epoch(1), "the first epoch was not saved")
        pipeline.kill(example)
        wait_until(pipeline.is_over, "the processes of the example did not end with it")
        again = tmrl_processes.run(tmp_path, ["--out", "out", *pipeline.options])
    finally:
        pipeline.close()
    assert re.search(r"resumed from out/checkpoint at epoch [12]", again)
    assert pipeline.values()["total_updates"] == 200
    assert re.search(r"^test return over 20 episodes: -\d+\.\d$", again, re.MULTILINE)


def test_a_trainer_and_a_worker_that_are_killed_lose_no_sample(pipeline: Pipeline) -> None:
    pipeline.start("server")
    workers = [pipeline.start("worker") for _ in range(2)]
    first = pipeline.start("trainer")
    wait_until(lambda: pipeline.has_epoch(1) and pipeline.taken(), "the first epoch was not saved")
    pipeline.kill(first)
    before, unsaved = pipeline.values(), [path.name for path in pipeline.taken()]
    assert before["epoch"] >= 1
    pipeline.kill(workers[0])
    pipeline.start("worker")
    pipeline.finish(pipeline.start("trainer"))
    after = pipeline.values()
    assert (after["epoch"], after["total_updates"]) == (4, 1_200)
    # Every sample that a worker has numbered arrived once: those in the checkpoint, those that were taken and not
    # saved, and those of the worker that was killed.
    assert after["received"]["lost"] == 0
    for worker, (boot, position) in before["received"]["next"].items():
        assert after["received"]["next"][worker] > [boot, position] or not unsaved
    names = [path.name for path in pipeline.taken()]
    assert not set(names) & set(unsaved)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_pipeline_learns_although_its_trainer_is_killed(tmp_path: Path) -> None:
    """A random policy's mean return is about -1,200; a trainer whose learning rate is 0 stays there."""
    pipeline = Pipeline(tmp_path)
    try:
        pipeline.start("server")
        for _ in range(2):
            pipeline.start("worker")
        trainer = pipeline.start("trainer")
        wait_until(lambda: pipeline.has_epoch(2) and pipeline.taken(), "the second epoch was not saved")
        pipeline.kill(trainer)
        pipeline.finish(pipeline.start("trainer"))
    finally:
        pipeline.close()
    done = tmrl_processes.run(tmp_path, ["--out", "out"])
    assert float(re.findall(r"test return over 20 episodes: (-\d+\.\d)", done)[0]) >= -300
