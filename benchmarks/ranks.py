"""Measures several learner ranks: python benchmarks/ranks.py

Two ranks with one thread each against one rank with two threads, at the same total batch; and what gloo costs: two
ranks against two learners of half the batch that do not communicate. Rounds of all contestants in turn.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import offbeat  # before torch, so that idle threads of one contestant do not spin while another computes

# isort: split
import torch

import machine
import report
from contest import Score
from data import shaped_environment
from learners.offbeat import Contestant
from offbeat.ranks import ALONE
from offbeat.run.ranked import process_ranks

SHAPES: dict[str, dict[str, Any]] = {
    "small": {"algorithm": "sac", "observation": 17, "action": 6, "hidden": [256, 256], "batch": 256},
    "large": {"algorithm": "sac", "observation": 48, "action": 12, "hidden": [512, 256, 128], "batch": 8192},
}
ONE, TWO_THREADS = "1 rank, 1 thread", "1 rank, 2 threads"
RANKS, APART = "2 ranks, 1 thread each", "2 learners of half the batch, apart"
TITLES = {"small": "SAC, 256-256, batch 256", "large": "SAC, 512-256-128, batch 8,192"}


class Process:
    """A forked process that makes updates when asked to. rank: its number among two ranks, None for a learner alone."""

    def __init__(self, shape: dict[str, Any], threads: int, rank: int | None, port: int, capacity: int) -> None:
        self._pipe, theirs = Pipe()
        self._child = os.fork()
        if self._child == 0:
            if rank is not None:
                where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", **where}
            serve(theirs, shape, threads, capacity)
            os._exit(0)

    def begin(self, what: str, count: int) -> None:
        self._pipe.send((what, count))

    def seconds(self) -> float:
        found: float = self._pipe.recv()
        return found

    def close(self) -> None:
        self._pipe.send(("end", 0))
        os.waitpid(self._child, 0)


def serve(pipe: Connection, shape: dict[str, Any], threads: int, capacity: int) -> None:
    contestant = Contestant(threads, capacity, shape)
    training = contestant._agent.training
    if training.agreement is not None:
        training.agreement.meet()  # steps of the rows that were added
    ranks = ALONE if training.agreement is None else process_ranks()
    state: Any = training.learner.backend.state  # type: ignore[attr-defined]
    gradients = [state.critic.gradient, state.actor.gradient, state.log_temperature.clone()]
    while (asked := pipe.recv())[0] != "end":
        start = time.perf_counter()
        if asked[0] == "learn":
            contestant.learn(asked[1])
        else:
            for _ in range(asked[1]):
                for each in gradients:
                    ranks.add_up(each.zero_())
        pipe.send(time.perf_counter() - start)


def together(processes: Sequence[Process], what: str, count: int) -> float:
    """Seconds until all have made `count` of something."""
    for each in processes:
        each.begin(what, count)
    return max(each.seconds() for each in processes)


def contestants(shape: dict[str, Any], capacity: int) -> dict[str, list[Process]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    half = {**shape, "batch": shape["batch"] // 2}
    return {
        ONE: [Process(shape, 1, None, port, capacity)],
        TWO_THREADS: [Process(shape, 2, None, port, capacity)],
        RANKS: [Process(shape, 1, rank, port, capacity) for rank in range(2)],
        APART: [Process(half, 1, None, port, capacity) for _ in range(2)],
    }


def measure(shape: dict[str, Any], options: argparse.Namespace) -> tuple[list[Score], float]:
    """Updates per second of each, and microseconds for the sums of an update alone."""
    processes = contestants(shape, options.capacity)
    rounds: dict[str, list[float]] = {name: [] for name in processes}
    counts = {name: max(4, int(options.seconds / _seconds_of_one(own))) for name, own in processes.items()}
    for _ in range(options.rounds):
        for name, own in processes.items():
            rounds[name].append(counts[name] / together(own, "learn", counts[name]))
    sums = [together(processes[RANKS], "sums", 300) / 300 for _ in range(options.rounds)]
    for own in processes.values():
        for each in own:
            each.close()
    found = {"offbeat": offbeat.__version__, "torch": torch.__version__}
    return [Score(name, found, "", rates) for name, rates in rounds.items()], 1e6 * statistics.median(sums)


def _seconds_of_one(own: Sequence[Process]) -> float:
    """Seconds of one update, after a warm-up."""
    together(own, "learn", 8)
    return together(own, "learn", 8) / 8


def lines(scores: Sequence[Score]) -> list[list[str]]:
    two_threads = report.by_name(scores, TWO_THREADS)
    found = []
    for score in scores:
        rate = statistics.median(score.rounds)
        compared = "" if score.name == TWO_THREADS else report.times(report.ratio(score, two_threads))
        found.append([score.name, report.number(rate), report.number(1e6 / rate), compared])
    return found


def gloo(scores: Sequence[Score]) -> float:
    """Microseconds by which an update of two ranks takes longer than one of two learners that do not communicate."""
    ranks, apart = report.by_name(scores, RANKS), report.by_name(scores, APART)
    assert ranks is not None
    assert apart is not None
    pairs = zip(ranks.rounds, apart.rounds, strict=True)
    return 1e6 * statistics.median(1 / mine - 1 / theirs for mine, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=report.names, default=list(SHAPES), help="small, large")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each contestant in a round")
    parser.add_argument("--capacity", type=int, default=100_000)
    options, out = report.arguments(parser)
    shaped_environment(SHAPES["small"])  # imports, before the forks
    parts, record = [], {}
    with machine.watched() as described:
        for name in options.shapes:
            scores, sums = measure(SHAPES[name], options)
            record[name] = {score.name: score.rounds for score in scores} | {"sums": sums, "gloo": gloo(scores)}
            header = ["", "updates/s", "µs per update", "to 2 threads"]
            parts.append(
                f"**{TITLES[name]}**\n\n{report.table(header, lines(scores))}\n\n"
                f"Gloo: an update of 2 ranks takes {report.number(gloo(scores))} µs longer than one of 2 learners of "
                f"half the batch that do not communicate. Its three sums (critics, actor, temperature) alone take "
                f"{report.number(sums)} µs."
            )
    versions = f"offbeat {offbeat.__version__}, torch {torch.__version__}"
    first = f"{machine.sentence(described)}; {versions}. Rounds: {options.rounds}, interleaved; medians."
    report.publish("ranks", {"machine": described, "results": record}, "\n\n".join([first, *parts]) + "\n", out)


if __name__ == "__main__":
    main()
