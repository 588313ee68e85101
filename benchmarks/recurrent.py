"""Compares updates per second of recurrent SAC, including sampling of sequences: python benchmarks/recurrent.py"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import machine
import report
from contest import Entry, Score, Worker, chosen, compete, workers

UPDATES_PER_CALL = 4
ENTRIES = (
    Entry("offbeat", "learners.offbeat_recurrent"),
    Entry("offbeat SAC_RNN", "learners.offbeat_skrl_recurrent"),
    Entry("skrl SAC_RNN", "learners.skrl_recurrent", "skrl"),
)
SHAPE: dict[str, Any] = {
    "observation": 17,
    "action": 6,
    "units": 256,
    "head": 256,
    "length": 32,
    "batch": 32,
    "episode": 1_000,
}


def run_case(threads: int, entries: list[Entry], options: argparse.Namespace) -> list[Score]:
    def measure(worker: Worker) -> float:
        return UPDATES_PER_CALL * worker.rate(options.seconds, "learn", UPDATES_PER_CALL)

    with workers(entries, threads, shape=SHAPE, capacity=options.capacity) as contestants:
        for worker in contestants:
            worker.call("learn", 2 * UPDATES_PER_CALL)  # warm-up: fills caches and allocators
        return compete(contestants, options.rounds, measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per contestant and round")
    parser.add_argument("--threads", type=report.numbers, default=[1, 2], help="comma-separated")
    parser.add_argument("--capacity", type=int, default=50_000, help="transitions in replay")
    options, out = report.arguments(parser)
    entries, skipped = chosen(ENTRIES, options.only)
    with machine.watched() as where:
        cases = [(threads, run_case(threads, entries, options)) for threads in options.threads]
    record = {
        "machine": where,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "capacity": options.capacity,
        "updates_per_call": UPDATES_PER_CALL,
        "shape": SHAPE,
        "skipped": skipped,
        "cases": [
            {"threads": threads, "updates_per_second": [asdict(score) for score in scores]} for threads, scores in cases
        ],
    }
    parts = [
        f"{machine.sentence(where)}. GRU of {SHAPE['units']} units, one layer, and a hidden layer of {SHAPE['head']}; "
        f"{SHAPE['batch']} sequences of {SHAPE['length']} steps, observation {SHAPE['observation']}, action "
        f"{SHAPE['action']}, episodes of {SHAPE['episode']:,} steps. "
        f"Rounds: {options.rounds} of {options.seconds:g} s, interleaved; medians."
    ]
    for threads, scores in cases:
        parts += [f"**{threads} thread{'s' * (threads > 1)}**", report.score_table(scores, "updates/s")]
    parts += [report.versions([score for _, scores in cases for score in scores]), *skipped]
    report.publish("recurrent", record, "\n\n".join(parts), out)


if __name__ == "__main__":
    main()
