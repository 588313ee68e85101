"""Compares updates per second, including sampling from replay: python benchmarks/learner.py"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import machine
import report
from contest import Entry, Score, Worker, chosen, compete, workers

UPDATES_PER_CALL = 16
JAX = report.OURS_IN_JAX
FLOOR, CACHED = "matrix products", "matrix products in the cache"
ENTRIES = (
    Entry("offbeat", "learners.offbeat"),
    Entry(JAX, "learners.offbeat_jax"),
    Entry("stable-baselines3", "learners.stable_baselines3"),
    Entry("stable-baselines3 fused", "learners.stable_baselines3_fused"),
    Entry("sbx", "learners.sbx", "sbx"),
    Entry("skrl", "learners.skrl", "skrl"),
    Entry("plain script", "learners.plain"),
    Entry(FLOOR, "learners.products"),
    Entry(CACHED, "learners.products_cached"),
)
SMALL: dict[str, Any] = {"observation": 17, "action": 6, "hidden": [256, 256], "batch": 256}
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"algorithm": "sac", **SMALL},
    "large": {"algorithm": "sac", "observation": 48, "action": 12, "hidden": [512, 256, 128], "batch": 8192},
    "td3": {"algorithm": "td3", **SMALL},
    "dqn": {"algorithm": "dqn", **SMALL},
}
THREADS = {"small": [1, 2], "large": [2], "td3": [1, 2], "dqn": [1, 2]}
ALL = {entry.name for entry in ENTRIES}
ENTERS = {
    "sac": ALL,
    "td3": {"offbeat", JAX, "stable-baselines3", "sbx", FLOOR, CACHED},
    "dqn": {"offbeat", JAX, "stable-baselines3", "sbx"},
}
"""Contestants by algorithm."""


def title(shape: str, threads: int) -> str:
    sizes = SHAPES[shape]
    hidden = "-".join(str(size) for size in sizes["hidden"])
    return f"{sizes['algorithm'].upper()}, {hidden}, batch {sizes['batch']}, {threads} thread{'s' * (threads > 1)}"


def run_case(shape: str, threads: int, entries: list[Entry], options: argparse.Namespace) -> list[Score]:
    def measure(worker: Worker) -> float:
        return UPDATES_PER_CALL * worker.rate(options.seconds, "learn", UPDATES_PER_CALL)

    entries = [entry for entry in entries if entry.name in ENTERS[SHAPES[shape]["algorithm"]]]
    with workers(entries, threads, shape=SHAPES[shape], capacity=options.capacity) as contestants:
        for worker in contestants:
            worker.call("learn", UPDATES_PER_CALL)  # warm-up: compiles, fills caches and allocators
        return compete(contestants, options.rounds, measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per contestant and round")
    parser.add_argument("--shape", choices=sorted(SHAPES))
    parser.add_argument("--threads", type=report.numbers, help="comma-separated")
    parser.add_argument("--capacity", type=int, default=100_000, help="transitions in replay")
    options, out = report.arguments(parser)
    entries, skipped = chosen(ENTRIES, options.only)
    cases: list[tuple[str, int, list[Score]]] = []
    with machine.watched() as where:
        for shape in [options.shape] if options.shape else SHAPES:
            for threads in options.threads or THREADS[shape]:
                print(f"{title(shape, threads)} ...", flush=True)
                cases.append((shape, threads, run_case(shape, threads, entries, options)))
    record = {
        "machine": where,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "capacity": options.capacity,
        "updates_per_call": UPDATES_PER_CALL,
        "skipped": skipped,
        "cases": [
            {"shape": SHAPES[shape], "threads": threads, "updates_per_second": [asdict(score) for score in scores]}
            for shape, threads, scores in cases
        ],
    }
    parts = [f"{machine.sentence(where)}. Rounds: {options.rounds} of {options.seconds:g} s, interleaved; medians."]
    for shape, threads, scores in cases:
        sizes = SHAPES[shape]
        actions = f"{sizes['action']} Discrete actions" if shape == "dqn" else f"action {sizes['action']}"
        parts.append(f"**{title(shape, threads)}**: observation {sizes['observation']}, {actions}")
        parts.append(report.score_table(scores, "updates/s", FLOOR))
    parts += [report.versions([score for _, _, scores in cases for score in scores]), *skipped]
    if out is not None:
        panels = [
            (title(shape, threads), [score for score in scores if score.name != CACHED])
            for shape, threads, scores in cases
        ]
        shown = [panel for panel, (shape, _, _) in zip(panels, cases, strict=True) if shape in ("small", "large")]
        report.chart(shown or panels[-1:], "updates per second", FLOOR, out / "learner.png")
    report.publish("learner", record, "\n\n".join(parts), out)


if __name__ == "__main__":
    main()
