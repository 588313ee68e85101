"""The main function of the evaluation process, which `ProcessEvaluator` starts with `python -m`."""

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
from offbeat.run.evaluation import run_episodes
from offbeat.trace import open_trace
from offbeat.weights.shared import SharedWeights, WeightsLayout

NICENESS = 5
"""Gives the learner and the collectors priority when there are more processes than cores."""


@dataclass(frozen=True)
class EvaluatorJob:
    """What the evaluation process needs. trace: the trace file, and whether spans carry CPU time; None: no trace."""

    make_vector: Callable[[], Vector]
    make_policy: Callable[[], Policy]
    episodes: int
    weights: Memory
    control: Memory
    layout: WeightsLayout
    trace: tuple[Path, bool] | None


def work(parent: Parent, job: EvaluatorJob) -> None:
    """Evaluates the newest weights at each request, until a message other than "evaluate" arrives."""
    os.nice(NICENESS)
    trace = open_trace(job.trace, "evaluation")
    weights, control = SharedWeights(job.layout, job.weights.map()), Control(1, job.control.map())

    def beat() -> bool:
        control.state, control.heartbeat = BUSY, time.monotonic_ns()
        return False  # never stop early

    with trace("start"):
        vector, policy = job.make_vector(), job.make_policy()
    while True:
        with trace("wait"):
            if parent.receive() != "evaluate":
                break
        with trace("evaluate"):
            publication = weights.newest()
            policy.load(publication.weights)
            results = run_episodes(vector, policy, job.episodes, beat)
        assert results is not None  # `beat` never requests a stop
        parent.send("evaluated", (publication.version, *results))
        trace.flush()
    vector.close()
    trace.close()


if __name__ == "__main__":
    Parent(sys.argv).run(work)
