"""Rollouts whose every value says which rollout it belongs to; as a script, a process that writes them into a queue."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any, Literal

import numpy as np

from offbeat.memory import Memory
from offbeat.replay.queue import _ABANDONED, _BEGUN, _OPENED, _WRITTEN, QueueCounts, Rollout, RolloutQueue
from offbeat.types import Array, Chunk, Field, Schema

SCHEMA = Schema((Field("obs", (128,), "float32"), Field("reward", (), "float64"), Field("beside", (3, 5), "int64")))
STEPS, NUM_ENVS = 3, 4
POLICIES = ("block", "drop-oldest")
VERSIONS = 3
"""Rollouts of one version."""


def make(slots: int, when_full: Any = "block", buffer: Any = None) -> RolloutQueue:
    return RolloutQueue(SCHEMA, STEPS, NUM_ENVS, slots, when_full=when_full, buffer=buffer)


def nbytes(slots: int) -> int:
    return RolloutQueue.nbytes(SCHEMA, STEPS, NUM_ENVS, slots)


def valid(number: int) -> Array:
    """Every fourth rollout has calls (T, N) that gave no row."""
    places = np.arange(STEPS * NUM_ENVS).reshape(STEPS, NUM_ENVS)
    return (number % 4 != 3) | ((places + number) % 5 != 0)


def step(number: int, index: int) -> tuple[Chunk, Array]:
    """A vector step of a rollout, and which environments gave a row; all values are the number and one."""
    kept = valid(number)[index]
    rows = np.count_nonzero(kept)
    return Chunk({each.name: np.full((rows, *each.shape), number + 1, each.dtype) for each in SCHEMA}), kept


def check(rollout: Rollout) -> None:
    """Fails if a rollout is torn, or bears what belongs to another."""
    number, expected = rollout.number, valid(rollout.number)
    np.testing.assert_array_equal(rollout.valid, expected)
    for each in SCHEMA:
        column = rollout.columns[each.name]
        assert column.dtype == each.dtype
        filled = np.where(expected.reshape(STEPS, NUM_ENVS, *(1 for _ in each.shape)), number + 1, 0)
        assert (column == filled).all(), f"rollout {number} is torn in {each.name}"
    assert rollout.version == number // VERSIONS


def sides(slots: int, when_full: str) -> tuple[RolloutQueue, RolloutQueue, Any]:
    """A writer, a reader, and the memory that they share."""
    buffer = bytearray(nbytes(slots))
    return make(slots, when_full, buffer), make(slots, when_full, buffer), buffer


def begin(writer: RolloutQueue) -> bool:
    return writer.begin(writer.counts().written // VERSIONS)


def states(queue: RolloutQueue) -> tuple[Literal["free", "filling", "full"], ...]:
    """The state of each slot, by the words that both sides share."""
    words, written = queue._words, queue._words[_WRITTEN]
    found: list[Literal["free", "filling", "full"]] = ["free"] * queue.slots
    for number in range(max(queue._next, words[_OPENED] - queue.slots), written):
        found[number % queue.slots] = "full"
    if words[_BEGUN] - written > words[_ABANDONED]:
        found[written % queue.slots] = "filling"
    return tuple(found)


def fill(writer: RolloutQueue, steps: int = STEPS) -> None:
    number = writer.counts().written
    for index in range(steps):
        writer.write(*step(number, index))


def add(writer: RolloutQueue, count: int = 1) -> None:
    for _ in range(count):
        assert begin(writer)
        fill(writer)


def take(reader: RolloutQueue) -> Rollout:
    rollout = reader.take()
    assert rollout is not None
    check(rollout)
    return rollout


def drain(reader: RolloutQueue) -> list[int]:
    """The numbers of all rollouts that wait, each of which is checked."""
    numbers = []
    while (rollout := reader.take()) is not None:
        check(rollout)
        numbers.append(rollout.number)
    return numbers


def assert_balanced(counts: QueueCounts, slots: int) -> None:
    assert counts.written == counts.taken + counts.dropped + counts.stale + counts.full
    assert 0 <= counts.full <= slots


def main(descriptor: int, slots: int, when_full: str, rollouts: int, seed: int, pauses: float) -> None:
    """Goes on until so many rollouts are written; pauses: the share of moments in which it sleeps."""
    queue = make(slots, when_full, Memory(descriptor, nbytes(slots)).map())
    rng, parent = random.Random(seed), os.getppid()
    while (number := queue.counts().written) < rollouts and os.getppid() == parent:
        if not begin(queue):
            time.sleep(20e-6)
            continue
        for index in range(STEPS):
            queue.write(*step(number, index))
            if rng.random() < pauses:
                time.sleep(rng.random() * 1e-3)
        if rng.random() < pauses:
            time.sleep(rng.random() * 1e-3)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
