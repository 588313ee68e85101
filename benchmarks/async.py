"""Measures collectors next to the learner, and writing and sampling in shared memory: python benchmarks/async.py

--learning compares returns with and without a collector instead, five seeds each (half an hour).
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from dataclasses import asdict
from pathlib import Path

import machine
import published
import report
from contest import HERE, Entry, Score, compete, workers

ENVIRONMENT = "HalfCheetah-v5"
SHAPE = {"algorithm": "sac", "observation": 17, "action": 6, "hidden": [256, 256], "batch": 256}
ALONE, BESIDE, IN_ONE = "the learner alone", "1 collector", "one process"
CORES, ROWS, ENVIRONMENTS, BATCH = 2, 1_000_000, 64, 256
LEARNED = ("sac-Pendulum-v1", "td3-Pendulum-v1", "dqn-CartPole-v1")


def hidden(options: argparse.Namespace) -> list[Score]:
    """Steps per second, with one update per step and one learner thread; for ALONE, updates per second."""
    seeds = itertools.count()
    first, last = options.first_step, options.first_step + options.steps
    with (
        workers([Entry(ALONE, "learners.offbeat")], CORES, capacity=100_000, shape=SHAPE, learner_threads=1) as alone,
        workers([Entry(BESIDE, "trainers.offbeat")], CORES, learner_threads=1, collectors=1) as beside,
        workers([Entry(IN_ONE, "trainers.offbeat")], CORES, learner_threads=1) as in_one,
    ):
        return compete(
            [*alone, *beside, *in_one],
            options.rounds,
            lambda worker: (
                16 * worker.rate(options.seconds, "learn", 16)
                if worker.score.name == ALONE
                else worker.call("steps_per_second", ENVIRONMENT, first, last, next(seeds))
            ),
        )


def replay(options: argparse.Namespace) -> tuple[list[Score], list[Score]]:
    """Rows per second, written in chunks of 64 and sampled in minibatches of 256."""
    make = {"capacity": ROWS, "environments": ENVIRONMENTS, "sizes": (17, 6)}
    module = "replays.shared"
    with (
        workers([Entry("NumPy", module)], 1, shards=0, **make) as plain,
        workers([Entry("1 shard", module)], 1, shards=1, **make) as one,
        workers([Entry("2 shards", module)], 1, shards=2, **make) as two,
    ):
        writing = compete(one, options.rounds, lambda worker: ENVIRONMENTS * worker.rate(options.seconds, "write"))
        sampling = compete(
            [*plain, *one, *two],
            options.rounds,
            lambda worker: (
                BATCH * worker.rate(options.seconds, "gather" if worker.score.name == "NumPy" else "sample", BATCH)
            ),
        )
    return writing, sampling


def against(scores: list[Score], base: str) -> str:
    """A table of medians, and of their ratios to the score `base`."""
    lines = [
        [
            score.name,
            report.number(statistics.median(score.rounds)),
            f"{report.ratio(score, report.by_name(scores, base)):.2f}",
        ]
        for score in scores
    ]
    return report.table(["", "per second", f"of {base}"], lines)


def speed(options: argparse.Namespace, out: Path | None) -> None:
    with machine.watched() as where:
        collecting = hidden(options)
        writing, sampling = replay(options)
    parts = [
        f"{machine.sentence(where)}. Rounds: {options.rounds}, interleaved; medians.",
        f"**Collection hidden**: {ENVIRONMENT}, 1 environment, 1 update per step, batch 256, hidden 256-256, 1 thread "
        f"for the learner on {CORES} cores; steps {options.first_step:,} to {options.first_step + options.steps:,}. "
        "The learner alone: updates from a replay that is already full.",
        against(collecting, ALONE),
        f"**Writing**, chunks of {ENVIRONMENTS} rows, into shared memory",
        report.table(["", "rows/s"], [[each.name, report.number(statistics.median(each.rounds))] for each in writing]),
        f"**Sampling**, batches of {BATCH} of {ROWS:,} rows; NumPy gathers the same fields, each from its own array",
        against(sampling, "NumPy"),
        report.versions([*collecting, *sampling]),
    ]
    record = {
        "machine": where,
        "steps": [options.first_step, options.first_step + options.steps],
        "collecting": [asdict(score) for score in collecting],
        "writing": [asdict(score) for score in writing],
        "sampling": [asdict(score) for score in sampling],
    }
    report.publish("async", record, "\n\n".join(parts), out)


def learning(options: argparse.Namespace, out: Path | None) -> None:
    """Final returns without and with a collector, and the standard error of their difference."""
    tasks = {task.name: task for task in published.TASKS}
    returns: dict[str, dict[str, list[float]]] = {}
    lines = []
    where = machine.describe()  # runs may be from earlier calls, so the load of the machine is unknown
    for name in LEARNED:
        jobs = [(kind, seed) for kind in (IN_ONE, BESIDE) for seed in range(options.seeds)]
        results = {
            (kind, seed): published.train(tasks[name], seed, options.work, collectors=int(kind == BESIDE))
            for kind, seed in jobs
        }
        means = {
            kind: [results[kind, seed]["mean_return"] for seed in range(options.seeds)] for kind in (IN_ONE, BESIDE)
        }
        returns[name] = means
        difference = statistics.mean(means[BESIDE]) - statistics.mean(means[IN_ONE])
        error = math.sqrt(sum(statistics.variance(each) / len(each) for each in means.values()))
        lines.append(
            [name]
            + [
                f"{statistics.mean(each):,.1f} ({', '.join(f'{mean:,.0f}' for mean in each)})"
                for each in means.values()
            ]
            + [f"{difference:+,.1f}", f"{error:,.1f}"]
        )
        print(lines[-1], flush=True)
    parts = [
        f"{machine.sentence(where)}. Unmodified presets, final policy, {published.EPISODES} episodes, one thread.",
        report.table(["", IN_ONE, BESIDE, "difference", "standard error"], lines),
    ]
    report.publish("async_learning", {"machine": where, "returns": returns}, "\n\n".join(parts), out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per measurement of learner and replay")
    parser.add_argument("--first-step", type=int, default=2_000, help="first timed step")
    parser.add_argument("--steps", type=int, default=2_000, help="number of timed steps")
    parser.add_argument("--learning", action="store_true", help="compare returns instead of speed")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, for --learning")
    parser.add_argument("--work", type=Path, default=HERE.parent / ".results", help="directory for runs of --learning")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    options = parser.parse_args()
    (learning if options.learning else speed)(options, options.out)


if __name__ == "__main__":
    main()
