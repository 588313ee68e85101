"""Compares defaults of `offbeat train` with manual settings, on idle and busy cores: python benchmarks/command.py"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import machine
import offbeat
import report
from contest import Score

THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
DEFAULTS, BY_HAND = "defaults", "--threads 1"


@dataclass(frozen=True)
class Regime:
    """flags: of the task. first, last: timed steps. in_process, beside: flags to try, without and with a collector."""

    name: str
    flags: str
    first: int
    last: int
    in_process: tuple[str, ...]
    beside: tuple[str, ...]


THREADS = ("--threads 1", "--threads 2")
REGIMES = (
    Regime(
        "1 environment, 1 update per step",
        "--env HalfCheetah-v5",
        1_500,
        3_500,
        (DEFAULTS, *THREADS, "--threads 2 --acting torch"),
        (DEFAULTS, *THREADS, "--slack 128", "--slack 8", "--collect-ahead 4"),
    ),
    Regime(
        "64 environments, 1 update per 16 steps",
        "--env HalfCheetah-v5 --num-envs 64 --updates-per-step 0.0625",
        8_000,
        32_000,
        (DEFAULTS, *THREADS, "--threads 2 --acting torch"),
        (DEFAULTS, *THREADS, "--slack 32", "--slack 2", "--collect-ahead 4", "--acting torch"),
    ),
)


def command(flags: Sequence[str], out: str) -> None:
    """Runs `offbeat train` without the thread counts that a benchmark may have set."""
    environment = {name: value for name, value in os.environ.items() if name not in THREAD_COUNTS}
    subprocess.run([sys.executable, "-m", "offbeat", "train", *flags, "--out", out], check=True, env=environment)


def steps_per_second(flags: Sequence[str], first: int, last: int, log_every: int) -> float:
    """Steps per second between the steps `first` and `last`, from the log of the run."""
    shared = f"--preset none --total-steps {last} --log-every {log_every} --eval-every 0 --eval-episodes 1"
    with tempfile.TemporaryDirectory() as out:
        command([*flags, *shared.split(), *["--checkpoint-every", "0", "--name", "run", "--quiet"]], out)
        lines = [json.loads(line) for line in (Path(out) / "run" / "metrics.jsonl").read_text().splitlines()]
    begun, ended = next(line for line in lines if line["step"] >= first), lines[-1]
    return (ended["step"] - begun["step"]) / (ended["wall"] - begun["wall"])


@contextmanager
def busy_cores() -> Iterator[None]:
    """Runs one busy loop per core during the block."""
    endless = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(endless) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(regime: Regime, settings: Sequence[tuple[str, str]], rounds: int, share: float) -> list[Score]:
    """settings: pairs of IN_PROCESS or BESIDE and flags. share: fraction of the timed steps to run."""
    scores = [Score(f"{where}, {flags}", {"offbeat": offbeat.__version__}, flags) for where, flags in settings]
    last = regime.first + round(share * (regime.last - regime.first))
    for seed in range(rounds):
        order = list(zip(settings, scores, strict=True))
        for (where, flags), score in order if seed % 2 == 0 else reversed(order):
            by_hand = [] if flags == DEFAULTS else flags.split()
            collectors = ["--collectors", "1"] if where == BESIDE else []
            line = ["sac", *regime.flags.split(), *by_hand, *collectors, "--seed", str(seed)]
            score.rounds.append(steps_per_second(line, regime.first, last, regime.first // 10))
            print(f"{regime.name}: {score.name}: {score.rounds[-1]:,.0f} steps/s", flush=True)
    return scores


IN_PROCESS, BESIDE = "in process", "1 collector"


def idle(regime: Regime, options: argparse.Namespace) -> list[Score]:
    settings = [(IN_PROCESS, flags) for flags in regime.in_process] + [(BESIDE, flags) for flags in regime.beside]
    return measure(regime, settings, options.rounds, options.share)


def busy(regime: Regime, options: argparse.Namespace) -> list[Score]:
    with busy_cores():
        settings = list(itertools.product((IN_PROCESS, BESIDE), (DEFAULTS, BY_HAND)))
        return measure(regime, settings, options.busy_rounds, options.share / 2)


def tables(regime: Regime, idle_scores: list[Score], busy_scores: list[Score]) -> list[str]:
    parts = [f"**{regime.name}**, idle cores"]
    header = ["", "steps/s", "of the best manual setting"]
    for where in (IN_PROCESS, BESIDE):
        own = [score for score in idle_scores if score.name.startswith(where)]
        best = max(statistics.median(score.rounds) for score in own[1:])
        lines = [
            [score.name, report.number(median), f"{median / best:.2f}"]
            for score in own
            for median in [statistics.median(score.rounds)]
        ]
        parts.append(report.table(header, lines))
    gain = report.ratio(report.by_name(idle_scores, f"{BESIDE}, {DEFAULTS}"), idle_scores[0])
    parts.append(f"With defaults, one collector makes {report.times(gain)} the steps of one process.")
    lines = [
        [score.name, report.number(statistics.median(score.rounds)), report.times(report.ratio(score, one_thread))]
        for score, one_thread in zip(busy_scores, [busy_scores[1]] * 2 + [busy_scores[3]] * 2, strict=True)
    ]
    parts += [f"**{regime.name}**, with another process busy on every core"]
    parts.append(report.table(["", "steps/s", f"of {BY_HAND}"], lines))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy-rounds", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the timed steps to run")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    options = parser.parse_args()
    with machine.watched() as where:
        idle_scores = {regime.name: idle(regime, options) for regime in REGIMES}
    busy_scores = {regime.name: busy(regime, options) for regime in REGIMES}
    record = {
        "machine": where,
        "idle": {name: [asdict(score) for score in scores] for name, scores in idle_scores.items()},
        "busy": {name: [asdict(score) for score in scores] for name, scores in busy_scores.items()},
    }
    parts = [
        f"{machine.sentence(where)}. `offbeat train sac --env HalfCheetah-v5 --preset none`, 256-256, batch 256. "
        f"Rounds: {options.rounds} idle, {options.busy_rounds} busy, interleaved; medians."
    ]
    for regime in REGIMES:
        parts += tables(regime, idle_scores[regime.name], busy_scores[regime.name])
    report.publish("command", record, "\n\n".join(parts), options.out)


if __name__ == "__main__":
    main()
