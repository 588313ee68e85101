"""How a run uses the machine, where its settings leave that open: threads, and how far collectors may run ahead.

What is chosen follows from the settings and the machine alone, never from a measurement, so that a run repeats number
for number. Threads, on which the last digits depend, are recorded with the run's settings: a resumed run keeps them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from offbeat import threads
from offbeat.algorithms.configs import PPO, Config, OffPolicy, Run

GRAIN, SLOW_GRAIN = 8_000_000, 64_000_000
"""Multiplications that a thread must have in the largest product of an update to be worth waking; and where waking is
slow. A second thread made SAC with 256-256 units and batches of 256 (17 million) a third faster on virtual AMD cores
(docs/benchmarks.md) and a quarter slower on virtual Intel ones, before these rules were there."""
MOST_THREADS = 16
MULTIPLICATIONS_PER_SECOND = 4e10
"""Of one core, roughly, over a whole update."""
SECONDS_PER_STEP = 100e-6
"""Of an environment with acting and writing, roughly: MuJoCo's take 40 to 200 microseconds."""
UPDATES_AHEAD, LEAST_SLACK, MOST_SLACK = 32, 2, 64


@dataclass(frozen=True)
class Work:
    """An update: its largest matrix product and the whole, in multiplications; updates per environment step."""

    largest: float
    whole: float
    per_step: float


def work_of(config: Config) -> Work:
    own, run = config.learner, config.run
    products = [first * second for first, second in pairwise((*own.hidden, 1))] or [1]
    if isinstance(own, OffPolicy):
        rows, networks, per_step = float(own.batch_size), 2 + 2 * getattr(own, "critics", 1), run.updates_per_step
    else:
        assert isinstance(own, PPO)
        rows, networks = own.rollout_steps * run.num_envs / own.minibatches, 2
        per_step = own.epochs * own.minibatches / (own.rollout_steps * run.num_envs)
    # Forward once, and backward at twice the cost.
    return Work(rows * max(products), 3 * networks * rows * sum(products), per_step)


def settled(config: Config) -> Config:
    """The config with a number of threads, where it left the choice open."""
    run = config.run
    return config if run.threads else replace(config, run=replace(run, threads=learner_threads(config)))


def ahead(run: Run) -> tuple[int, int]:
    """Vector steps that collectors may be ahead of their updates (slack), and that each may take unasked."""
    slack = _slack(run) if run.slack is None else run.slack
    return slack, run.collect_ahead or max(1, slack)


def learner_threads(config: Config) -> int:
    """As many as the largest product of an update keeps busy, on the cores that collectors leave.

    A core is left for each that collectors will need, and not for each collector: at one update per step they sleep
    most of the time. In one process, threads that sleep through long turns of the environments are slow to come back
    (Pendulum, 64 environments, an update per 100 steps: 1.5 x as many steps with one thread as with two).
    """
    run, work = config.run, work_of(config)
    learning = work.per_step * work.whole / MULTIPLICATIONS_PER_SECOND
    stepping = SECONDS_PER_STEP / learning  # cores that stepping would keep busy while the learner works, roughly
    in_turns = not run.collectors and isinstance(config.learner, OffPolicy)  # a few updates after each step of all
    if threads.spin_long() or (in_turns and stepping > 0.5):
        return 1
    useful = int(work.largest // (SLOW_GRAIN if threads.wake_slowly() else GRAIN))
    return max(1, min(useful, threads.cores() - round(min(run.collectors, stepping)), MOST_THREADS))


def _slack(run: Run) -> int:
    """Vector steps that hold some tens of updates, so that neither side waits for the other's next turn."""
    wanted = math.ceil(UPDATES_AHEAD / (run.updates_per_step * run.num_envs))
    room = run.capacity // run.num_envs // (run.collectors + 2)  # see Run: what a shard must hold
    return max(0, min(max(wanted, LEAST_SLACK), MOST_SLACK, room))


def sentence(config: Config, acting: str) -> str:
    """How the run uses the machine, for its first lines."""
    run = config.run
    said = [f"learner {run.threads} of {threads.cores()} threads", f"acting in {acting}"]
    if run.collectors:
        said.append(f"{run.collectors} collector{'s' * (run.collectors > 1)}")
    if run.collectors and isinstance(config.learner, OffPolicy):
        said.append("slack {}, collect ahead {}".format(*ahead(run)))
    if threads.spin_long():
        said.append("torch was imported before offbeat, whose threads then spin: import offbeat first for more threads")
    return "; ".join(said)
