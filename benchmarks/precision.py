"""Compares the precisions of Offbeat's torch learner, by processor time per update: python benchmarks/precision.py

All learners are in one process with one thread and take turns. The processor's time, not the clock's, is measured, so
that other processes disturb it less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import machine
import report
from learner import SHAPES, title

KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32 by autograd": {"gradients": "autograd"},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "float64": {"precision": "float64"},
}
CASES = {"small": tuple(KINDS), "large": ("float32", "float32 by autograd", "bfloat16", "float64")}
"""float16 on a processor without instructions for it would take minutes for a large batch."""
SECONDS = 0.15
"""At least so long is a turn, or one update."""


def measure(shape: dict[str, Any], kinds: tuple[str, ...], rounds: int, capacity: int) -> dict[str, list[float]]:
    """Milliseconds of processor time per update, one number per round."""
    from learners.offbeat import Contestant

    learners = {kind: Contestant(1, capacity, shape, **KINDS[kind]) for kind in kinds}
    counts = {kind: max(1, int(SECONDS / _seconds(learner, 2))) for kind, learner in learners.items()}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 else kinds[::-1]:
            found[kind].append(1e3 * _seconds(learners[kind], counts[kind]))
    return found


def _seconds(learner: Any, updates: int) -> float:
    learner.learn(1)  # warms the caches up
    start = time.thread_time()
    learner.learn(updates)
    return (time.thread_time() - start) / updates


def table(found: dict[str, list[float]]) -> str:
    lines = []
    for kind, each in found.items():
        speed = statistics.median(full / own for full, own in zip(found["float32"], each, strict=True))
        numbers = [report.number(pick(each)) for pick in (statistics.median, min, max)]
        lines.append([kind, *numbers, "" if kind == "float32" else report.times(speed)])
    return report.table(["", "ms per update", "min", "max", "times float32's speed"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--capacity", type=int, default=20_000, help="transitions in replay")
    options, out = report.arguments(parser)
    cases: dict[str, dict[str, list[float]]] = {}
    with machine.watched() as where:
        for name, kinds in CASES.items():
            chosen = tuple(kind for kind in kinds if options.only is None or kind in ("float32", *options.only))
            cases[name] = measure(SHAPES[name], chosen, options.rounds, options.capacity)
    parts = [f"{machine.sentence(where)}. Rounds: {options.rounds}, interleaved; medians of processor time."]
    for name, found in cases.items():
        parts += [f"**{title(name, 1)}**", table(found)]
    record = {"machine": where, "rounds": options.rounds, "milliseconds": cases}
    report.publish("precision", record, "\n\n".join(parts), out)


if __name__ == "__main__":
    main()
