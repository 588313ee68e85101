"""The evaluation process: `python -m offbeat.run.evaluator_process evaluation ...`, started by `ProcessEvaluator`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from offbeat.collect.children import Parent
from offbeat.collect.control import BUSY, Control
from offbeat.envs.vector import Vector
from offbeat.memory import Memory
from offbeat.policies import Policy
from offbeat.run.evaluate import evaluate
from offbeat.trace import NO_TRACE, Trace, Tracer
from offbeat.weights.shared import Layout, SharedWeights

NICENESS = 5
"""Training goes first where there are fewer cores than processes."""


@dataclass(frozen=True)
class Job:
    """Everything that the process needs."""

    make_vector: Callable[[], Vector]
    make_policy: Callable[[], Policy]
    episodes: int
    weights: Memory
    control: Memory
    layout: Layout
    trace: tuple[Path, bool] | None


def work(parent: Parent, job: Job) -> None:
    os.nice(NICENESS)
    trace: Trace = NO_TRACE if job.trace is None else Tracer(job.trace[0], "evaluation", cpu=job.trace[1])
    weights, control = SharedWeights(job.layout, job.weights.map()), Control(1, job.control.map())

    def beat() -> bool:
        control.state, control.heartbeat = BUSY, time.monotonic_ns()
        return False  # nobody wishes to stop

    with trace("start"):
        vector, policy = job.make_vector(), job.make_policy()
    while True:
        with trace("wait"):
            if parent.receive() != "evaluate":
                break
        with trace("evaluate"):
            publication, _ = weights.newest()
            policy.load(publication.weights)
            results = evaluate(vector, policy, job.episodes, beat)
        assert results is not None  # only a wish to stop gives None
        parent.send("evaluated", (publication.version, *results))
        trace.flush()
    vector.close()
    trace.close()


if __name__ == "__main__":
    Parent(sys.argv).run(work)
