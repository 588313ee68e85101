"""Compares the speed of APPO, whole training and learner alone, on 2 cores: python benchmarks/appo.py (15 minutes)

--learning compares returns instead: HalfCheetah-v5, a million steps, five seeds, against Stable-Baselines3's PPO with
RL Zoo's settings. It takes hours and is not part of `make bench`. Finished runs are kept, so an interrupted call
continues.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import machine
import report
from contest import HERE, Entry, Score, Worker, chosen, compete, workers
from trainers.on_policy import ENVIRONMENTS, EPOCHS, MINIBATCH, ROLLOUT_STEPS

CORES = 2
ROWS = ENVIRONMENTS * ROLLOUT_STEPS
SHAPE = {"observation": 17, "action": 6}  # HalfCheetah's
TRAINERS = (
    Entry("offbeat", "trainers.offbeat_appo"),
    Entry("stable-baselines3", "trainers.stable_baselines3_ppo"),
    Entry("stable-baselines3 1 thread", "trainers.stable_baselines3_ppo"),
    Entry("sample-factory", "trainers.sample_factory", "sample_factory"),
)
MADE_WITH: dict[str, dict[str, Any]] = {"stable-baselines3 1 thread": {"learner_threads": 1}}
LEARNERS = (
    Entry("offbeat", "learners.offbeat_appo"),
    Entry("offbeat jax", "learners.offbeat_appo_jax"),
    Entry("stable-baselines3", "learners.stable_baselines3_ppo"),
    Entry("stable-baselines3 fused", "learners.stable_baselines3_ppo_fused"),
)
# Offbeat's run has both cores. Two of Stable-Baselines3's share them, a thread each.
AT_ONCE = {"offbeat": 1, "stable-baselines3": 2}
RUN_NAMES = {"offbeat": "appo-{}-{}-{}-collectors-2", "stable-baselines3": "sb3-ppo-{}-{}-{}"}
EPISODES = 20
SHOWN = (
    *("preset", "num_envs", "rollout_steps", "minibatches", "epochs", "hidden", "activation", "learning_rate"),
    *("schedule", "gamma", "gae_lambda", "clip", "normalise_observations", "normalise_rewards"),
)
"""Settings of Offbeat that the table of --learning shows; the JSON contains all."""


def end_to_end(entries: Sequence[Entry], options: argparse.Namespace) -> list[Score]:
    """Environment steps per second after warm-up."""
    seeds = {entry.name: itertools.count() for entry in entries}
    first, last = options.first_step, options.first_step + options.steps
    with ExitStack() as stack:
        contestants = []
        for entry in entries:
            print(f"{entry.name} ...", flush=True)
            contestants += stack.enter_context(workers([entry], CORES, **MADE_WITH.get(entry.name, {})))
        return compete(
            contestants,
            options.rounds,
            lambda worker: worker.call(
                "steps_per_second", options.environment, first, last, next(seeds[worker.score.name])
            ),
        )


def learner(entries: Sequence[Entry], threads: int, options: argparse.Namespace) -> list[Score]:
    """Rollouts learned from per second."""
    with workers(entries, threads, **SHAPE) as contestants:
        for worker in contestants:
            worker.call("learn")  # fills caches and allocators
        return compete(contestants, options.rounds, lambda worker: worker.rate(options.seconds, "learn"))


def speed(options: argparse.Namespace, out: Path | None) -> None:
    present, skipped = chosen((*TRAINERS, *LEARNERS), options.only)
    trainers, learners = ([entry for entry in each if entry in present] for each in (TRAINERS, LEARNERS))
    first, last = options.first_step, options.first_step + options.steps
    with machine.watched() as where:
        whole = end_to_end(trainers, options) if trainers else []
        turns = {threads: learner(learners, threads, options) for threads in options.threads if learners}
    parts = [f"{machine.sentence(where)}. Rounds: {options.rounds}, interleaved; medians."]
    if whole:
        parts += [
            f"**Whole training**: {options.environment}, {ENVIRONMENTS} environments, {EPOCHS} epochs, minibatches of "
            f"{MINIBATCH} rows, actor and critic 64-64 tanh, observations and rewards normalised, {CORES} cores. Steps "
            f"{first:,} to {last:,} of each run.",
            report.score_table(whole, "steps/s"),
            report.versions(whole),
        ]
    for threads, scores in turns.items():
        parts += [
            f"**The learner alone**, {threads} thread{'s' * (threads > 1)}: a rollout of {ROWS:,} rows, {EPOCHS} "
            f"epochs of {ROWS // MINIBATCH} minibatches, observation {SHAPE['observation']}, action {SHAPE['action']}",
            report.score_table(scores, "rollouts/s"),
        ]
    parts += [report.versions([score for scores in turns.values() for score in scores])] * bool(turns)
    record = {
        "machine": where,
        "environment": options.environment,
        "cores": CORES,
        "steps": [first, last],
        "rounds": options.rounds,
        "seconds": options.seconds,
        "skipped": skipped,
        "steps_per_second": [asdict(score) for score in whole],
        "rollouts_per_second": [
            {"threads": threads, "scores": [asdict(score) for score in scores]} for threads, scores in turns.items()
        ],
    }
    report.publish("appo", record, "\n\n".join([*parts, *skipped]), out)


def train(entry: Entry, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one run, unless it is finished already: returns of the final policy, time, settings, versions."""
    name = RUN_NAMES[entry.name].format(options.environment, options.learning_steps, seed)
    make = {"learner_threads": 1} if entry.name == "stable-baselines3" else {}
    worker = Worker(entry, CORES, make)
    try:
        path = str(options.work.resolve() / name)
        found = worker.call("learned", options.environment, options.learning_steps, seed, EPISODES, path)
    finally:
        worker.close()
    print(f"{name}: {statistics.mean(found['returns']):,.1f} in {found['wall_seconds']:,.0f} s", flush=True)
    return {"seed": seed, **found, "versions": worker.score.versions}


def standard_error(groups: Sequence[Sequence[float]]) -> float:
    """Standard error of the difference between two means; infinite if a group has only one number."""
    if min(len(group) for group in groups) < 2:
        return math.inf
    return math.sqrt(sum(statistics.variance(group) / len(group) for group in groups))


def learning(options: argparse.Namespace, out: Path | None) -> None:
    """Returns of the final policies, evaluated by their own library, with frozen statistics of the normaliser."""
    entries, _ = chosen([entry for entry in TRAINERS if entry.name in AT_ONCE], options.only)
    where = machine.describe()  # runs may be from earlier calls, so the load of the machine is unknown
    options.work.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE[entry.name])
        try:
            waiting = [pool.submit(train, entry, seed, options) for seed in range(options.seeds)]
            runs[entry.name] = [each.result() for each in waiting]
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt ends the current runs and starts no other
    means = {name: [statistics.mean(run["returns"]) for run in each] for name, each in runs.items()}
    lines = [
        [
            name,
            f"{statistics.mean(means[name]):,.0f}",
            ", ".join(f"{mean:,.0f}" for mean in means[name]),
        ]
        for name in runs
    ]
    parts = [
        f"{machine.sentence(where)}. {options.environment}, {options.learning_steps:,} steps, final policy, "
        f"{EPISODES} deterministic episodes per seed. Offbeat's runs have 2 collectors. Durations "
        "are not compared: runs may have been interrupted, or shared the machine with other work.",
        report.table(["", "mean return", "by seed"], lines),
    ]
    if len(means) == len(AT_ONCE):
        ours, theirs = means["offbeat"], means["stable-baselines3"]
        difference, error = statistics.mean(ours) - statistics.mean(theirs), standard_error([ours, theirs])
        parts.append(f"Offbeat's mean minus Stable-Baselines3's: {difference:+,.0f}, standard error {error:,.0f}.")
    parts.append(
        "\n".join(f"- {name}: {_listing(each[0]['versions'])}; {_settings_of(each[0])}" for name, each in runs.items())
    )
    kept = {
        name: [{key: value for key, value in run.items() if key != "wall_seconds"} for run in each]
        for name, each in runs.items()
    }
    record = {"machine": where, "steps": options.learning_steps, "environment": options.environment, "runs": kept}
    report.publish("appo_learning", record, "\n\n".join(parts), out)


def _settings_of(run: dict[str, Any]) -> str:
    """The settings of a run of --learning, for the table."""
    settings = run["settings"]
    if "preset" in settings:
        return f"`appo`, {_listing({name: settings[name] for name in SHOWN})}"
    return f"PPO by RL Zoo's settings, {_listing(settings)}; VecNormalize for observations and rewards"


def _listing(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per measurement of the learner alone")
    parser.add_argument("--threads", type=report.numbers, default=[1, 2], help="of the learner alone, comma-separated")
    parser.add_argument("--first-step", type=int, default=8 * ROWS, help=f"first timed step; a multiple of {ROWS}")
    parser.add_argument("--steps", type=int, default=20 * ROWS, help=f"number of timed steps; a multiple of {ROWS}")
    parser.add_argument("--environment", default="HalfCheetah-v5")
    parser.add_argument("--learning", action="store_true", help="compare returns instead of speed")
    parser.add_argument("--learning-steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, for --learning")
    parser.add_argument("--work", type=Path, default=HERE.parent / ".results", help="directory for runs of --learning")
    options, out = report.arguments(parser)
    (learning if options.learning else speed)(options, out)


if __name__ == "__main__":
    main()
