"""Compares adding to replay, sampling from it, and its memory: python benchmarks/replay.py"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import machine
import report
from contest import Entry, Score, Worker, chosen, compete, workers

SIZES = 17, 6  # observation and action of HalfCheetah-v5
BATCHES = (256, 8192)
ENVIRONMENTS = (1, 64, 1024)
ENTRIES = (
    Entry("offbeat", "replays.offbeat"),
    Entry("stable-baselines3", "replays.stable_baselines3"),
    Entry("cpprb", "replays.cpprb", "cpprb"),
)
MEMORY = ("offbeat", "stable-baselines3")


def run_cases(environments: int, entries: list[Entry], options: argparse.Namespace) -> dict[str, list[Score]]:
    """Rows per second by case: adding with `environments` environments, and, with one environment, sampling."""
    cases: dict[str, list[Score]] = {}

    def sampling(batch: int) -> list[Score]:
        return compete(
            contestants, options.rounds, lambda worker: batch * worker.rate(options.seconds, "sample", batch)
        )

    def adding(worker: Worker) -> float:
        return environments * worker.rate(options.seconds, "add")

    make = {"capacity": options.capacity, "environments": environments, "sizes": SIZES, "dtype": "float32"}
    with workers(entries, 1, **make) as contestants:
        for worker in contestants:
            worker.call("fill")
        if environments == 1:
            cases |= {f"sample {batch}": sampling(batch) for batch in BATCHES}
        plural = "s" * (environments > 1)
        cases[f"add, {environments} environment{plural}"] = compete(contestants, options.rounds, adding)
    return cases


def memory(entries: list[Entry], capacity: int) -> dict[str, int]:
    """Resident bytes of `capacity` HalfCheetah-v5 transitions (float64 observations), each in a fresh process."""
    resident = {}
    for entry in entries:
        with workers([entry], 1, capacity=capacity, environments=1, sizes=SIZES, dtype="float64") as (worker,):
            worker.call("fill")
            resident[entry.name] = int(worker.call("resident"))
    return resident


def memory_table(resident: dict[str, int], capacity: int) -> str:
    ours = resident.get(report.OURS)
    lines = [
        [name, f"{held / 1e6:,.0f}", f"{held / capacity:.0f}", "" if ours is None else f"{ours / held:.0%}"]
        for name, held in resident.items()
    ]
    return report.table(["", "MB", "bytes per transition", "Offbeat / row"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per contestant, case and round")
    parser.add_argument("--capacity", type=int, default=1_000_000)
    options, out = report.arguments(parser)
    entries, skipped = chosen(ENTRIES, options.only)
    cases: dict[str, list[Score]] = {}
    with machine.watched() as where:
        for environments in ENVIRONMENTS:
            print(f"{environments} environments ...", flush=True)
            cases |= run_cases(environments, entries, options)
    resident: dict[str, int] = {}
    if Path("/proc/self/statm").exists():
        resident = memory([entry for entry in entries if entry.name in MEMORY], options.capacity)
    else:
        skipped.append("Memory was not measured: it is read from /proc, which only Linux has.")
    parts = [
        f"{machine.sentence(where)}. {options.capacity:,} rows, observation {SIZES[0]}, action {SIZES[1]}, 1 thread. "
        f"Rounds: {options.rounds} of {options.seconds:g} s, interleaved; medians."
    ]
    for case, scores in cases.items():
        parts += [f"**{case}**", report.score_table(scores, "rows/s")]
    if resident:
        parts += ["**Resident memory of HalfCheetah-v5 transitions**", memory_table(resident, options.capacity)]
    parts += [report.versions(next(iter(cases.values()))), *skipped]
    record = {
        "machine": where,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "capacity": options.capacity,
        "skipped": skipped,
        "rows_per_second": {case: [asdict(score) for score in scores] for case, scores in cases.items()},
        "resident_bytes": resident,
    }
    report.publish("replay", record, "\n\n".join(parts), out)


if __name__ == "__main__":
    main()
