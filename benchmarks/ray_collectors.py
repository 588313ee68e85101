"""Measures collectors in Ray actors against as many processes on this machine: python benchmarks/ray_collectors.py

Both collect at once, without a learner that holds them back. One of them works at a time, in rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import machine
import report
from contest import Score

ENVIRONMENT, HIDDEN, COLLECTORS = "HalfCheetah-v5", [256, 256], 2
LOCAL, RAY = "processes", "ray"
PUBLICATIONS_PER_SECOND = 20
SECONDS_BETWEEN_POLLS = 0.002
"""A learner on a GPU asks for rows between two updates, and leaves the cores to the collectors meanwhile. For a rollout
it waits."""
ROLLOUT_STEPS = 128
SIZES = (1_000, 100_000, 200_000, 1_000_000)
STEPS_AHEAD = 1_024
"""That a collector may take without a new permit; the same for both kinds."""
CASES = {
    "sac, 1 environment": {"algorithm": "sac", "environments": 1, "publish": False},
    "sac, 1 environment, weights": {"algorithm": "sac", "environments": 1, "publish": True},
    "sac, 8 environments": {"algorithm": "sac", "environments": 8, "publish": False},
    "appo, 8 environments, weights": {"algorithm": "appo", "environments": 8, "publish": True},
}
"""Environments of each collector. weights: new ones are published 20 times a second."""


class Side:
    """A collector that is driven without a learner. kind: LOCAL or RAY."""

    def __init__(self, kind: str, algorithm: str, environments: int, publish: bool) -> None:
        from offbeat.run.build import prepare
        from offbeat.run.environments import Environments
        from offbeat.settings import make_config
        from offbeat.trace import NO_TRACE

        own: dict[str, Any] = {"rollout_steps": ROLLOUT_STEPS}
        if algorithm == "sac":
            own = {"random_steps": 0, "pace": "free", "collect_ahead": STEPS_AHEAD // environments}
        settings = {"collectors": COLLECTORS, "collector": kind, "num_envs": COLLECTORS * environments, **own}
        given = {"env": ENVIRONMENT, "preset": None, "hidden": HIDDEN, "eval_episodes": 0, "threads": 1, **settings}
        config = make_config(algorithm, given | {"total_steps": 10**12})
        parts = prepare(Environments(config, None, None), None)
        self.training, self.collector, self._publish = parts.training, parts.collector, publish
        self._rollouts = algorithm == "appo"
        self.collector.connect(note=print, trace=NO_TRACE, stop=lambda: False)
        self._versions = iter(range(1, 10**9))
        self._new_weights()
        while any(each["state"] == "starting" for each in self.collector.report().processes):
            self.rows(0.5)

    def _new_weights(self) -> None:
        from offbeat.weights.publication import Publication

        self.collector.publish(Publication(next(self._versions), self.training.learner.weights()))

    def rows(self, seconds: float) -> float:
        """Rows per second."""
        start = now = time.monotonic()
        rows, published = 0, start
        while now - start < seconds:
            self.collector.allow(1 << 62)
            rows += sum(map(len, self.collector.poll(SECONDS_BETWEEN_POLLS if self._rollouts else 0.0)))
            if not self._rollouts:
                time.sleep(SECONDS_BETWEEN_POLLS)
            else:
                self.training.experience.pending = None  # as if it were learned from at once
            now = time.monotonic()
            if self._publish and now - published > 1 / PUBLICATIONS_PER_SECOND:
                self._new_weights()
                published = now
        return rows / (now - start)

    def pause(self) -> None:
        """Lets what is permitted come to an end."""
        self.collector.allow(-1)
        quiet = time.monotonic()
        while time.monotonic() - quiet < 0.2:
            if self.collector.poll(0.0):
                quiet = time.monotonic()
            if self._rollouts:
                self.training.experience.pending = None


@contextmanager
def cluster() -> Iterator[None]:
    # Ray gives its workers a low priority, which would count where other programs want the same cores.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=COLLECTORS, object_store_memory=512 << 20, **options)
    yield
    ray.shutdown()


def used_seconds() -> float:
    """Processor time of this process and everything that it has started, and that runs."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def mine(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    return sum(seconds for pid, seconds in spent.items() if mine(pid))


def measure(case: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    """Rows per second of both sides in each round, and processor time per 1,000 rows."""
    packages = {"offbeat": version("offbeat"), "ray": version("ray")}
    scores = [Score(kind, packages, f"{COLLECTORS} collectors, 1 thread each") for kind in (LOCAL, RAY)]
    cost: dict[str, list[float]] = {LOCAL: [], RAY: []}
    others: list[float] = []
    sides = {kind: Side(kind, **case) for kind in (LOCAL, RAY)}
    for side in sides.values():
        side.pause()
    try:
        for _ in range(rounds):
            for score in scores:
                side, before, busy = sides[score.name], used_seconds(), machine.busy_seconds() or 0.0
                score.rounds.append(side.rows(seconds))
                used = used_seconds() - before
                others.append(((machine.busy_seconds() or used) - busy - used) / seconds)
                cost[score.name].append(1e6 * used / (score.rounds[-1] * seconds))
                side.pause()
    finally:
        for side in sides.values():
            side.collector.close()
    bytes_of = sides[RAY].training.experience.schema.row.itemsize
    weights = sum(array.nbytes for array in sides[RAY].training.learner.weights().values())
    return {
        "scores": [asdict(score) for score in scores],
        "processor_us_per_row": {kind: statistics.median(each) for kind, each in cost.items()},
        "cores_of_others": max(0.0, statistics.median(others)),
        "rows_per_chunk": ROLLOUT_STEPS * case["environments"] if case["algorithm"] == "appo" else STEPS_AHEAD // 2,
        "calls_in_flight": 1 if case["algorithm"] == "appo" else 2,
        "publications_per_second": PUBLICATIONS_PER_SECOND if case["publish"] else 0,
        "bytes_per_row": bytes_of,
        "bytes_of_weights": weights,
    }


def line(name: str, measured: dict[str, Any]) -> list[str]:
    local, ray = (Score(**each) for each in measured["scores"])
    cost = measured["processor_us_per_row"]
    return [
        name,
        *(report.number(statistics.median(each.rounds)) for each in (local, ray)),
        f"{report.ratio(ray, local):.0%}",
        f"{cost[LOCAL]:.1f}",
        f"{cost[RAY]:.1f}",
    ]


def call_costs(count: int) -> dict[str, Any]:
    """Seconds of the single parts, for the model in hosts.py, by the bytes of an answer.

    latency: until the answer is there. processor: of all processes. learner: of this process alone. publication:
    processor time to store weights and to fetch them in an actor, with the call that does so.
    """
    import numpy as np
    import ray

    class Answering:
        def give(self, size: int) -> Any:
            return np.zeros(size, np.uint8)

        def take(self, weights: list[Any]) -> None:
            np.array(ray.get(weights[0])["actor"])

    actor = ray.remote(Answering).options(num_cpus=0).remote()
    ray.get(actor.give.remote(1))
    found: dict[str, Any] = {"bytes": list(SIZES), "latency": [], "processor": [], "learner": []}
    for size in SIZES:
        taken, used, own = [], used_seconds(), time.process_time()
        for _ in range(count):
            start = time.perf_counter()
            np.array(ray.get(actor.give.remote(size)))  # copied, as into a shard
            taken.append(time.perf_counter() - start)
        found["latency"].append(statistics.median(taken))
        found["learner"].append((time.process_time() - own) / count)
        found["processor"].append((used_seconds() - used) / count)
    weights, taken, used = {"actor": np.zeros(75_000, np.float32)}, [], used_seconds()
    for _ in range(count):
        start = time.perf_counter()
        reference = ray.put(weights)
        taken.append(time.perf_counter() - start)
        ray.get(actor.take.remote([reference]))
    published = (used_seconds() - used) / count
    ray.kill(actor)
    return {**found, "put_300_kb": statistics.median(taken), "publication": published}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--calls", type=int, default=500, help="calls to measure their cost")
    options, out = report.arguments(parser)
    chosen = {name: case for name, case in CASES.items() if any(each in name for each in options.only or [""])}
    where = machine.describe()
    with cluster():
        measured = {name: measure(case, options.rounds, options.seconds) for name, case in chosen.items()}
        calls = call_costs(options.calls)
    where["others"] = round(max(each["cores_of_others"] for each in measured.values()), 2)
    header = ["environments of each collector", LOCAL, "ray, rows/s", "ray / processes", "us per row", "with ray"]
    parts = [
        f"{machine.sentence(where)}. {ENVIRONMENT}, {COLLECTORS} collectors, hidden 256-256, acting in NumPy, 1 thread "
        f"each, no learner, {STEPS_AHEAD:,} steps ahead. Rounds: {options.rounds} of {options.seconds:g} s, "
        "interleaved; medians. us per row: processor time of all processes, Ray's own included. weights: new ones "
        f"{PUBLICATIONS_PER_SECOND} times a second.",
        report.table(header, [line(name, each) for name, each in measured.items()]),
        f"A call of an actor that has nothing to do takes {1e3 * calls['latency'][0]:.1f} ms with an answer of 1 kB, "
        f"{1e3 * calls['latency'][-1]:.1f} ms with 1 MB; storing weights of 300 kB {1e3 * calls['put_300_kb']:.1f} ms.",
        f"offbeat {version('offbeat')}, ray {version('ray')}, numpy {version('numpy')}, mujoco {version('mujoco')}",
    ]
    record = {"machine": where, "collectors": COLLECTORS, "cases": measured, "calls": calls}
    report.publish("ray_collectors", record, "\n\n".join(parts), out)


if __name__ == "__main__":
    main()
