"""Compares the speed of a script that came from skrl with skrl itself: python benchmarks/coming_from.py

The script is examples/coming_from_skrl.py: SAC on Pendulum with models of the user's own. Only its imports differ.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict

import machine
import report
from contest import Entry, Worker, chosen, compete, workers

ENTRIES = (
    Entry("offbeat", "migrations.offbeat"),
    Entry("skrl", "migrations.skrl", "skrl"),
)
CASES = {"64-64, batch 64 (the script)": ([64, 64], 64), "400-300, batch 100": ([400, 300], 100)}
"""The script's own sizes, and those of skrl's own example for Pendulum."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first-step", type=int, default=400, help="first timed step")
    parser.add_argument("--steps", type=int, default=1_000, help="number of timed steps")
    options, out = report.arguments(parser)
    entries, skipped = chosen(ENTRIES, options.only)
    first, last = options.first_step, options.first_step + options.steps
    tables, records, scores = [], {}, []
    with machine.watched() as where, workers(entries, options.threads) as contestants:
        for name, (hidden, batch) in CASES.items():
            seeds = {entry.name: itertools.count() for entry in entries}

            def measure(
                worker: Worker,
                hidden: list[int] = hidden,
                batch: int = batch,
                seeds: dict[str, itertools.count] = seeds,
            ) -> float:
                arguments = hidden, batch, first, last, next(seeds[worker.score.name])
                return float(worker.call("timesteps_per_second", *arguments))

            scores = compete(contestants, options.rounds, measure)
            records[name] = [asdict(score) for score in scores]
            tables.append(f"**{name}**\n\n{report.score_table(scores, 'timesteps/s')}")
    record = {
        "machine": where,
        "threads": options.threads,
        "steps": [first, last],
        "rounds": options.rounds,
        "skipped": skipped,
        "timesteps_per_second": records,
    }
    parts = [
        f"{machine.sentence(where)}. Pendulum-v1, 1 environment, 1 update per timestep, {options.threads} thread(s). "
        f"Timesteps {first:,} to {last:,} of each run, with TensorBoard as the script has it. "
        f"Rounds: {options.rounds}, interleaved; medians.",
        *tables,
        report.versions(scores),
        *skipped,
    ]
    report.publish("coming_from", record, "\n\n".join(parts), out)


if __name__ == "__main__":
    main()
