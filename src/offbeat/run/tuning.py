"""Defaults that depend on the machine: the learner's threads, and how far collectors may be ahead.

They follow from the settings and the machine only, never from a measurement, so that a run can be repeated exactly. The
number of threads, which changes the last digits, is recorded with the run's settings: a resumed run keeps it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from offbeat import flat, threads
from offbeat.algorithms.configs import Config, Run
from offbeat.algorithms.configs.groups import learned_rows
from offbeat.algorithms.registry import find
from offbeat.ranks import place

GRAIN, SLOW_GRAIN = 8_000_000, 64_000_000
"""Multiplications per thread in the largest product of an update, from which another thread is faster; and the same on
processors where threads wake slowly. A second thread made SAC with 256-256 units and batches of 256 (17 million) a
third faster on virtual AMD cores (docs/benchmarks.md) and a quarter slower on virtual Intel ones, before these
rules. JAX takes the second value everywhere: for the same update its second thread made it 15% slower, also on AMD."""
MOST_THREADS = 16
MULTIPLICATIONS_PER_SECOND = 4e10
"""Of one core, roughly, over a whole update."""
SECONDS_PER_STEP = 100e-6
"""Of an environment with acting and writing, roughly: MuJoCo's take 40 to 200 microseconds."""
STEPS_IN_CALLS, COLLECTORS_AT_ONCE = 1_024, 50
"""Environment steps in the two calls of a Ray actor that are under way: a call costs 1 to 2 ms, the time of some 20
steps of MuJoCo. More for more collectors, as the learner takes only so many answers a second."""
UPDATES_AHEAD, LEAST_SLACK, MOST_SLACK = 32, 2, 64


@dataclass(frozen=True)
class Work:
    """An update: its largest matrix product and the whole, in multiplications; updates per environment step."""

    largest: float
    whole: float
    per_step: float


def work_of(config: Config) -> Work:
    own, run = config.learner, config.run
    products = [first * second for first, second in pairwise((*own.networks.hidden, 1))] or [1]
    if find(config.algorithm).learns_from == "replay":
        critics = flat.values(own).get("critics", 1)
        rows, networks = learned_rows(own) / run.compute.learners, 2 + 2 * critics
        per_step = run.pace.updates_per_step * run.compute.learners  # for each step of a rank's own
    else:
        rollouts, steps = own.rollouts, own.rollouts.rollout_steps * run.environment.num_envs
        rows, networks, per_step = steps / rollouts.minibatches, 2, rollouts.epochs * rollouts.minibatches / steps
    # Forward once, and backward at twice the cost.
    return Work(rows * max(products), 3 * networks * rows * sum(products), per_step)


def settled(config: Config) -> Config:
    """The config with a number of threads, if it had none."""
    run = config.run
    return (
        config if run.compute.threads else replace(config, run=flat.overlay(run, {"threads": learner_threads(config)}))
    )


def ahead(run: Run) -> tuple[int, int]:
    """Vector steps that collectors may be ahead of their updates (slack), and that each may take per permit."""
    slack = _slack(run) if run.collection.slack is None else run.collection.slack
    return slack, run.collection.collect_ahead or max(1, slack, _chunk(run) if slack else 0)


def learner_threads(config: Config) -> int:
    """As many threads as the largest product of an update can use, on the cores that collectors leave free.

    Cores are left free for the work of the collectors, not for each collector: at one update per step they sleep most
    of the time. In one process, threads that sleep during long phases of environment steps are slow to wake
    (Pendulum, 64 environments, an update per 100 steps: 1.5 x as many steps with one thread as with two).
    """
    run, work = config.run, work_of(config)
    learning = work.per_step * work.whole / MULTIPLICATIONS_PER_SECOND
    stepping = SECONDS_PER_STEP / learning  # cores that stepping uses while the learner works, roughly
    from_replay = find(config.algorithm).learns_from == "replay"
    in_turns = from_replay and not run.collection.collectors  # a few updates after each vector step
    if threads.idle_threads_spin() or (in_turns and stepping > 0.5):
        return 1
    slow = run.compute.backend == "jax" or threads.threads_wake_slowly()
    useful = int(work.largest // (SLOW_GRAIN if slow else GRAIN))
    elsewhere = run.collection.collector == "ray" and run.ray.ray_address is not None
    here = 0 if elsewhere else run.collection.collectors
    cores = threads.cores() // min(run.compute.learners, place().local_size)
    return max(1, min(useful, cores - round(min(here, stepping)), MOST_THREADS))


def _slack(run: Run) -> int:
    """Vector steps that give some tens of updates, so that learner and collectors do not wait for each other."""
    num_envs = run.environment.num_envs * run.compute.learners
    wanted = math.ceil(UPDATES_AHEAD / (run.pace.updates_per_step * num_envs))
    room = run.storage.capacity // run.environment.num_envs // (run.collection.collectors + 2)
    return max(0, min(max(wanted, LEAST_SLACK), MOST_SLACK, room))


def _chunk(run: Run) -> int:
    """Vector steps that make a call of a Ray actor worth its cost; 0 where collectors share memory."""
    if run.collection.collector != "ray":
        return 0
    share = -(-run.environment.num_envs // run.collection.collectors)
    room = run.storage.capacity // run.environment.num_envs // 4
    return min(-(-steps_in_calls(run.collection.collectors) // share), room)


def steps_in_calls(collectors: int) -> int:
    """Environment steps in the two calls of a Ray actor that are under way."""
    return STEPS_IN_CALLS * min(max(1, collectors // COLLECTORS_AT_ONCE), 16)


def sentence(config: Config, acting: str) -> str:
    """Threads, acting library and collectors, for the first lines of a run."""
    run = config.run
    several = run.compute.learners > 1
    who = f"{run.compute.learners} learners, each" if several else "learner"
    said = [f"{who} {run.compute.threads} of {threads.cores()} threads", f"acting in {acting}"]
    if run.collection.collectors:
        where = f" on Ray ({run.ray.ray_address or 'this machine'})" * (run.collection.collector == "ray")
        count = f"{run.collection.collectors} collector{'s' * (run.collection.collectors > 1)}"
        said.append(count + " of each learner" * several + where)
    if run.collection.collectors and find(config.algorithm).learns_from == "replay":
        said.append("slack {}, collect ahead {}".format(*ahead(run)))
    if threads.idle_threads_spin():
        said.append(
            "torch was imported before offbeat, so its idle threads spin: import offbeat first to use more threads"
        )
    return "; ".join(said)
