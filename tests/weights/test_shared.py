"""Weights in shared memory: a reader never gets a mixture of two versions, whatever the writer does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import soak
from offbeat.errors import OffbeatError
from offbeat.memory import Memory
from offbeat.weights.shared import SharedWeights, weights_layout

READER = Path(__file__).parents[1] / "weights_reader.py"
SIZE = 20_000


def filled(version: int) -> dict[str, np.ndarray]:
    return {"a": np.full(SIZE, version, np.float32), "b": np.full((3, 5), version, np.int64)}


@pytest.fixture
def memory() -> Memory:
    return Memory.create(SharedWeights.nbytes(weights_layout(filled(0))))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_four_readers_never_see_a_torn_set(memory: Memory) -> None:
    weights = SharedWeights(weights_layout(filled(0)), memory.map())
    weights.publish(0, filled(0))
    arguments = [memory.descriptor, memory.nbytes, SIZE, soak.count(1_000_000) // 4]
    readers = [
        subprocess.Popen(
            [sys.executable, str(READER), *map(str, arguments)],
            pass_fds=(memory.descriptor,),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    version = 0
    while any(reader.poll() is None for reader in readers):
        version += 1
        weights.publish(version, filled(version))
    assert [reader.returncode for reader in readers] == [0] * 4
    for reader in readers:
        assert reader.stdout is not None
        assert int(reader.stdout.read()) > 50, "the reader hardly ever met the writer"


def test_a_reader_gets_its_own_copy_of_the_newest_version(memory: Memory) -> None:
    weights, reader = (SharedWeights(weights_layout(filled(0)), memory.map()) for _ in range(2))
    weights.publish(1, filled(1))
    old = reader.newest()
    weights.publish(2, filled(2))
    weights.publish(3, filled(3))
    new = reader.newest()
    assert (old.version, new.version) == (1, 3)
    assert (old.weights["a"] == 1).all()
    assert (new.weights["b"] == 3).all()
    assert reader.count == 3


def test_reading_before_the_first_publication_is_an_error(memory: Memory) -> None:
    with pytest.raises(OffbeatError, match="published yet"):
        SharedWeights(weights_layout(filled(0)), memory.map()).newest()


def test_a_spoilt_copy_is_not_handed_on(memory: Memory) -> None:
    mapped = memory.map()
    weights = SharedWeights(weights_layout(filled(0)), mapped)
    weights.publish(7, filled(7))
    place = bytes(mapped).index(np.float32(7).tobytes() * 4)
    mapped[place] ^= 1
    with pytest.raises(OffbeatError, match="checksum"):
        weights.newest()


def test_a_writer_that_was_interrupted_leaves_the_version_before(memory: Memory) -> None:
    weights = SharedWeights(weights_layout(filled(0)), memory.map())
    weights.publish(1, filled(1))
    with pytest.raises(ValueError, match="it must be"):
        weights.publish(2, {"a": filled(2)["a"], "b": np.zeros(3, np.int64)})
    assert weights.newest().version == 1
    weights.publish(3, filled(3))
    assert (weights.newest().weights["a"] == 3).all()
