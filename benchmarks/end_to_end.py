"""Compares the speed of whole training, one environment, one update per step: python benchmarks/end_to_end.py

--learning compares returns instead: final returns of 3 seeds on 2 environments, each environment on its own core (half
an hour).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import machine
import report
from contest import Entry, chosen, compete, workers

ENTRIES = (
    Entry("offbeat", "trainers.offbeat"),
    Entry("stable-baselines3", "trainers.stable_baselines3"),
    Entry("sbx", "trainers.sbx", "sbx"),
)
ENVIRONMENT = "HalfCheetah-v5"
LEARNED_BY = ("offbeat", "stable-baselines3")
LEARNING_ENVIRONMENTS = ["Pendulum-v1", "HalfCheetah-v5"]


def speed(entries: list[Entry], skipped: list[str], options: argparse.Namespace, out: Path | None) -> None:
    """Environment steps per second after learning has started."""
    seeds = {entry.name: itertools.count() for entry in entries}
    first, last = options.first_step, options.first_step + options.steps
    with machine.watched() as where, workers(entries, options.threads) as contestants:
        scores = compete(
            contestants,
            options.rounds,
            lambda worker: worker.call("steps_per_second", ENVIRONMENT, first, last, next(seeds[worker.score.name])),
        )
    record = {
        "machine": where,
        "environment": ENVIRONMENT,
        "threads": options.threads,
        "steps": [first, last],
        "rounds": options.rounds,
        "skipped": skipped,
        "steps_per_second": [asdict(score) for score in scores],
    }
    parts = [
        f"{machine.sentence(where)}. {ENVIRONMENT}, 1 environment, 1 update per step, batch 256, hidden 256-256, "
        f"{options.threads} threads. Steps {first:,} to {last:,} of each run. "
        f"Rounds: {options.rounds}, interleaved; medians.",
        report.score_table(scores, "steps/s"),
        report.versions(scores),
        *skipped,
    ]
    report.publish("end_to_end", record, "\n\n".join(parts), out)


def learning(entries: list[Entry], options: argparse.Namespace, out: Path | None) -> None:
    """Final returns: the mean of 10 deterministic episodes per seed."""
    entries = [entry for entry in entries if entry.name in LEARNED_BY]
    scores = []

    def learned(environment: str, core: int) -> dict[str, list[list[float]]]:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})  # applies to this thread and to the processes that it starts
        found: dict[str, list[list[float]]] = {entry.name: [] for entry in entries}
        with workers(entries, threads=1) as contestants:
            scores.extend(worker.score for worker in contestants)
            for seed in range(options.seeds):
                for worker in contestants:
                    print(f"{environment}, seed {seed}, {worker.entry.name} ...", flush=True)
                    played = worker.call("final_returns", environment, options.learning_steps, seed)
                    found[worker.entry.name].append(played)
        return found

    cores = itertools.cycle(sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0])
    with machine.watched() as where, ThreadPoolExecutor(len(options.environments)) as pool:
        returns = dict(zip(options.environments, pool.map(learned, options.environments, cores), strict=True))
    versions = report.versions(scores)
    record = {
        "machine": where,
        "steps": options.learning_steps,
        "returns_by_seed_and_episode": returns,
    }
    lines = [
        [f"{environment}, {name}", f"{statistics.mean(means):,.1f}", *(f"{mean:,.1f}" for mean in means)]
        for environment, by_name in returns.items()
        for name, seeds in by_name.items()
        for means in [[statistics.mean(episodes) for episodes in seeds]]
    ]
    header = ["", "mean return", *(f"seed {seed}" for seed in range(options.seeds))]
    parts = [
        f"{machine.sentence(where)}. After {options.learning_steps:,} steps, 10 deterministic episodes per seed; "
        "one thread; each environment on its own core.",
        report.table(header, lines),
        versions,
    ]
    report.publish("learning", record, "\n\n".join(parts), out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    # Learning starts at step 1,000; compilation is finished by step 2,000.
    parser.add_argument("--first-step", type=int, default=2_000, help="first timed step")
    parser.add_argument("--steps", type=int, default=3_000, help="number of timed steps, in whole thousands")
    parser.add_argument("--learning", action="store_true", help="compare final returns instead of speed")
    parser.add_argument("--learning-steps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, for --learning")
    parser.add_argument("--environments", type=report.names, default=LEARNING_ENVIRONMENTS, help="for --learning")
    options, out = report.arguments(parser)
    entries, skipped = chosen(ENTRIES, options.only)
    if options.learning:
        learning(entries, options, out)
    else:
        speed(entries, skipped, options, out)


if __name__ == "__main__":
    main()
