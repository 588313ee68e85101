"""Goes on with another number of ranks: replay is divided anew by episodes, and everything learned stays as it was.

Each episode goes to one rank as a whole. Interrupted episodes and unfinished rollouts are not continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.collect.stepper import MAX_ENVIRONMENTS
from offbeat.errors import CheckpointError
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.rank_checkpoint import OWN_OF_LEARNER, RANKS, part_of, size_of
from offbeat.run.snapshot import Snapshot
from offbeat.run.training import Training
from offbeat.types import Array, Chunk


def restore_learned(training: Training, snapshot: Snapshot) -> None:
    """Restores what all ranks have in common: networks, optimisers, temperature, normalisers, counters."""
    part = part_of(snapshot, 0)
    own = [name for name in part.arrays if name.startswith("experience/")]
    if own and training.algorithm.learns_from == "replay":
        made, now = size_of(snapshot), training.ranks.size
        raise CheckpointError(
            f"the state of your replay ({', '.join(own)}) cannot be divided: the checkpoint was made by {made} "
            f"learner(s) and this run has {now}; use {made}"
        )
    arrays = {name: array for name, array in part.arrays.items() if name.startswith("learner/")}
    arrays |= {name: array[:0] for name, array in arrays.items() if name in OWN_OF_LEARNER}
    fresh = {"streams": training.streams.state(), "chunks": {"next": {}, "lost": 0}, "own_steps": 0}
    training.restore(Snapshot(arrays, {**part.values, **fresh}, part.notes))


def divide_replay(checkpoints: Checkpoints, which: str, training: Training) -> None:
    """Fills the shards of this rank with its share of all rows of the checkpoint, and counts them as taken."""
    shards, ranks = list(training.shards.values()), training.ranks
    sources = checkpoints.rows_of(which)
    known: dict[tuple[int, int], int] = {}
    room = sum(shard.capacity for shard in shards)
    if shards:
        sizes = [count for count, _ in sources]
        # Of rings that together hold more than this rank can, the newest rows of each.
        skip = [max(0, count - room * ranks.size * count // max(1, sum(sizes))) for count in sizes]
        for source, chunk in _in_turns(sources):
            chunk = _skipped(chunk, skip, source)
            numbers = _numbers(chunk, source, known)
            for shard, mask in _shares(chunk, numbers, ranks.rank, ranks.size, shards):
                if mask.any():
                    shard.write(_renumbered(chunk, mask, numbers))
    checkpoints.continue_from(which)
    training.own_steps = training._counted_steps = sum(shard.committed for shard in shards)
    training.ledger.restore({"next": {str(shard.worker): (0, shard.committed) for shard in shards}, "lost": 0})


def _in_turns(sources: Sequence[tuple[int, Iterator[Chunk]]]) -> Iterator[tuple[int, Chunk]]:
    """The chunks of all shards, each in its order, side by side, so that old rows of all are overwritten first."""
    done = [0] * len(sources)
    alive = {index for index, (count, _) in enumerate(sources) if count}
    while alive:
        index = min(alive, key=lambda each: (done[each] / sources[each][0], each))
        chunk = next(sources[index][1], None)
        if chunk is None:
            alive.remove(index)
            continue
        done[index] += len(chunk)
        yield index, chunk


def _skipped(chunk: Chunk, skip: list[int], source: int) -> Chunk:
    """The chunk without those of its rows that are still to be left out."""
    left = min(skip[source], len(chunk))
    skip[source] -= left
    return chunk if not left else Chunk({name: column[left:] for name, column in chunk.columns.items()})


def _numbers(chunk: Chunk, source: int, known: dict[tuple[int, int], int]) -> Array:
    """A number (R,) of each row's environment among those of all sources; on every rank the same."""
    envs, which = np.unique(chunk.columns["env"], return_inverse=True)
    return np.array([known.setdefault((source, int(env)), len(known)) for env in envs], np.int64)[which]


def _shares(
    chunk: Chunk, numbers: Array, rank: int, size: int, shards: Sequence[Shard]
) -> Iterator[tuple[Shard, Array]]:
    """Which rows of a chunk each shard of this rank gets: whole episodes, in turns, those of an environment and those
    that environments have at the same time.
    """
    turn = chunk.columns["episode"].astype(np.int64) + numbers
    mine = turn % size == rank
    for index, shard in enumerate(shards):
        yield shard, mine & (turn // size % len(shards) == index)


def _renumbered(chunk: Chunk, mask: Array, numbers: Array) -> Chunk:
    """These rows, with numbers of environments that no environment of this run has, so that links stay apart."""
    columns: dict[str, Any] = {name: np.array(column[mask]) for name, column in chunk.columns.items()}
    columns["env"][:] = MAX_ENVIRONMENTS - 1 - numbers[mask] % (MAX_ENVIRONMENTS // 2)
    return Chunk(columns)


def progress_of(snapshot: Snapshot, rank: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Counters and bookkeeping of the run's progress: rank 0 takes over what all ranks have counted."""
    parts = [snapshot.values["progress"], *(each["progress"] for each in snapshot.values.get(RANKS, ()))]
    counters = dict(parts[0])
    for name in ("calls", "episodes"):
        counters[name] = sum(each[name] for each in parts) if rank == 0 else 0
    return counters, snapshot.notes["progress"]
