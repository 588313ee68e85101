"""Ranks: learner processes of one run, which make every update together, each with its part of the batch.

`torchrun` starts them and says so in environment variables. Nothing here imports torch: `learn.torch_ranks` joins them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from offbeat.errors import OffbeatError, UsageError
from offbeat.types import Array


class RankFault(OffbeatError):
    """Another rank has ended or cannot be reached, so that no further update can be made together."""


class Ranks(Protocol):
    """What one rank needs of all. Every rank must make the same calls in the same order.

    rank: the number of this one, from 0. size: how many there are.
    """

    rank: int
    size: int

    def gather(self, row: Array) -> Array:
        """The numbers (n,) of every rank, (K, n), in float64."""
        ...

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The data of every rank, of any length."""
        ...

    def add_up(self, tensor: Any) -> None:
        """Replaces a tensor by its sum over all ranks, the same bits everywhere."""
        ...

    def copy_first(self, tensor: Any) -> None:
        """Replaces a tensor by that of rank 0."""
        ...

    def close(self) -> None: ...


class Alone:
    """A learner without others."""

    rank, size = 0, 1

    def gather(self, row: Array) -> Array:
        return np.asarray(row, np.float64)[None]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def add_up(self, tensor: Any) -> None:
        pass

    def copy_first(self, tensor: Any) -> None:
        pass

    def close(self) -> None:
        pass


ALONE = Alone()


@dataclass(frozen=True)
class Place:
    """Which process of a job this is, as `torchrun` says. local: among those of this machine."""

    rank: int = 0
    size: int = 1
    local: int = 0
    local_size: int = 1


def place(variables: Mapping[str, str] | None = None) -> Place:
    """This process among the ranks of a job; the only one, unless RANK and WORLD_SIZE say otherwise."""
    variables = os.environ if variables is None else variables
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return Place()
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    given = {name: variables[name] for name in names if name in variables}
    if wrong := {name: text for name, text in given.items() if not text.isdecimal()}:
        said = ", ".join(f"{name}={text}" for name, text in wrong.items())
        raise UsageError(f"{said}: must be whole numbers, as torchrun sets them; unset them to train with one learner")
    rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
    if rank >= size:
        raise UsageError(f"RANK={rank}: must be less than WORLD_SIZE={size}, as torchrun sets them")
    return Place(rank, size, int(given.get("LOCAL_RANK", rank)), int(given.get("LOCAL_WORLD_SIZE", size)))


def own_seed(seed: int, rank: int, step: int = 0) -> int:
    """The seed of a rank's random streams and episodes. step: where a run went on with another number of ranks."""
    if rank == step == 0:
        return seed
    entropy = [seed, zlib.crc32(b"rank"), rank, step]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def part_of_batch(batch_size: int, size: int) -> int:
    """The rows that each rank contributes to a batch."""
    if batch_size % size:
        nearest = max(1, round(batch_size / size)) * size
        raise UsageError(
            f"batch_size={batch_size} cannot be divided among {size} learners equally; use batch_size={nearest}"
        )
    return batch_size // size


LAUNCHER = "OFFBEAT_LAUNCHER"
"""The environment variable with the process id of `--learners`, with which its learners end."""
END_NOTE = "OFFBEAT_END_NOTE"
"""The environment variable that names a file, which the first rank makes when a run has ended as it should, or was
stopped and saved; `--learners` looks for it after a signal."""
