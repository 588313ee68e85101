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
from offbeat.errors import CheckpointError
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.lock import Owner
from patience import SECONDS, wait_until


class Pipeline:
    """The example's parts, each started and killed on its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory, self.options = directory, ["--out", "out", *options]
        self._processes: list[BaseProcess] = []

    def start(self, role: str, epochs: int = 10) -> BaseProcess:
        name, arguments = f"{role} {len(self._processes)}", [role, "--epochs", str(epochs), *self.options]
        self._processes.append(tmrl_processes.start(self.directory, name, arguments))
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
        try:
            return bool(self.values()["epoch"] >= epoch)
        except CheckpointError:  # not there yet, or replaced while it was read
            return False

    def taken(self) -> list[Path]:
        """Buffers that the trainer has taken and not saved."""
        return list(self.directory.glob("offbeat-tmrl-*/*/taken/*.chunks"))

    def is_over(self) -> bool:
        """Whether every process that held a place has ended."""
        locks = [json.loads(path.read_text() or "null") for path in self.directory.rglob(".lock")]
        return all(owner is None or Owner(**owner).is_dead for owner in locks)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join(SECONDS)


SMALL = "--rounds", "1", "--steps", "100"
ENDLESS = 10**6
"""Epochs of a trainer that is killed: it cannot finish before."""


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(tmp_path, *SMALL)
    yield made
    made.close()


def test_the_example_resumes_after_all_of_it_was_killed(pipeline: Pipeline) -> None:
    example = pipeline.start("all", ENDLESS)
    wait_until(lambda: pipeline.has_epoch(1), "the first epoch was not saved")
    pipeline.kill(example)
    wait_until(pipeline.is_over, "the processes of the example did not end with it")
    epoch = pipeline.values()["epoch"]
    again = tmrl_processes.run(pipeline.directory, ["--epochs", str(epoch + 1), *pipeline.options])
    assert f"resumed from out/checkpoint at epoch {epoch}" in again
    assert pipeline.values()["total_updates"] == 100 * (epoch + 1)
    assert re.search(r"^test return over 20 episodes: -\d+\.\d$", again, re.MULTILINE)


def test_a_trainer_and_a_worker_that_are_killed_lose_no_sample(pipeline: Pipeline) -> None:
    pipeline.start("server")
    workers = [pipeline.start("worker") for _ in range(2)]
    first = pipeline.start("trainer", ENDLESS)
    wait_until(lambda: pipeline.has_epoch(1) and pipeline.taken(), "the first epoch was not saved")
    pipeline.kill(first)
    before, unsaved = pipeline.values(), {path.name for path in pipeline.taken()}
    pipeline.kill(workers[0])
    pipeline.start("worker")
    epochs = before["epoch"] + 2
    pipeline.finish(pipeline.start("trainer", epochs))
    after = pipeline.values()
    assert (after["epoch"], after["total_updates"]) == (epochs, 100 * epochs)
    # Workers number their samples: none is missing, and none that was taken and not saved is left.
    assert after["received"]["lost"] == 0
    assert not unsaved & {path.name for path in pipeline.taken()}
    assert after["total_samples"] > before["total_samples"]


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
    done = tmrl_processes.run(tmp_path, pipeline.options)
    assert float(re.findall(r"test return over 20 episodes: (-\d+\.\d)", done)[0]) >= -300
