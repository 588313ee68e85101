"""Every part of a run takes its state from a checkpoint, made by as many ranks or by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offbeat.collect.collector import Collector
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.rank_checkpoint import of_rank, part_of, size_of
from offbeat.run.redistribution import divide_replay, progress_of, restore_learned
from offbeat.run.snapshot import Snapshot
from offbeat.run.training import Training
from offbeat.types import select_prefix


def restore_agent(training: Training, checkpoints: Checkpoints, open_store: Callable[[], Any]) -> Snapshot:
    """Loads the newest checkpoint into an agent of a loop of the user's own; returns the snapshot of this rank.

    open_store: called between the learner's state and the rows, which then have a place.
    """
    snapshot, ranks = checkpoints.load("latest"), training.ranks
    if size_of(snapshot) != ranks.size:
        restore_learned(training, snapshot)
        divide_replay(checkpoints, "latest", training)
        return Snapshot()
    own = part_of(snapshot, ranks.rank)
    training.restore(own)
    open_store()
    checkpoints.load_replay("latest", of_rank(training.shards, ranks.rank), partly=ranks.size > 1)
    return own


Progressed = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Counters and bookkeeping of a run's progress."""


def restore_run(
    training: Training, collector: Collector, checkpoints: Checkpoints, which: str, snapshot: Snapshot
) -> tuple[Progressed, list[str]]:
    """Restores learner, replay and collector of this rank; the progress, and a sentence for whatever is not exact."""
    ranks, made = training.ranks, size_of(snapshot)
    if made != ranks.size:
        restore_learned(training, snapshot)
        divide_replay(checkpoints, which, training)
        told = (
            f"the checkpoint was made by {made} learner{'s' * (made > 1)}, and this run has {ranks.size}: replay is "
            "divided anew, episode by episode; interrupted episodes and unfinished rollouts begin anew"
        )
        sentences = collector.restore({}, {})
        return progress_of(snapshot, ranks.rank), [told, *sentences] if ranks.rank == 0 else sentences
    own = part_of(snapshot, ranks.rank)
    training.restore(own)
    checkpoints.load_replay(which, of_rank(training.shards, ranks.rank), partly=made > 1)
    sentences = collector.restore(select_prefix(own.arrays, "collector/"), own.values["collector"])
    return (own.values["progress"], own.notes["progress"]), sentences
