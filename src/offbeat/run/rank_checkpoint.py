"""One checkpoint of several ranks: each writes its rows, rank 0 commits all parts at once.

The snapshot of rank 0 is the checkpoint's own. That of rank r is below `ranks/r/` in the arrays and in `ranks` of
values and notes, without what all ranks have in common; its shards are called `rankR-...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from offbeat.algorithms.configs import Config
from offbeat.errors import CheckpointError
from offbeat.ranks import Ranks, own_seed
from offbeat.replay.segments import SavedShard
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.snapshot import Snapshot, decode_arrays, encode_arrays, from_json, to_json
from offbeat.run.training import Training
from offbeat.types import Array, select_prefix

Kind = TypeVar("Kind")

OWN_OF_LEARNER = ("learner/returns/running", "learner/returns/episodes")
"""Arrays of the learner that each rank has for its own environments; all others are the same everywhere."""
OWN_NOTES = ("pending", "logged", "progress")
RANKS, SEEDS = "ranks", "seeds"


def of_rank(shards: Mapping[str, Kind], rank: int) -> dict[str, Kind]:
    """What belongs to the shards of a rank, by their names in a checkpoint."""
    return dict(shards) if rank == 0 else {f"rank{rank}-{name}": each for name, each in shards.items()}


def save_together(
    ranks: Ranks,
    checkpoints: Checkpoints,
    snapshot: Snapshot,
    shards: Mapping[str, Shard],
    step: int,
    ends: Mapping[str, int] | None,
    seed: int,
) -> str:
    """Saves the parts of all ranks as one checkpoint and returns its name; all ranks call it.

    It exists only when every rank has written its part: an error on one, or its end, leaves the checkpoint before.
    """
    part: dict[str, Any] = {"seed": seed}
    arrays = b""
    if ranks.rank:
        try:
            saved = checkpoints.append(of_rank(shards, ranks.rank), of_rank(ends or {}, ranks.rank))
            part |= _part(snapshot, saved)
            arrays = encode_arrays(_own_arrays(snapshot.arrays))
        except CheckpointError as error:
            part = {"failure": f"rank {ranks.rank}: {error}"}
    parts = [from_json(data, "the part of a rank") for data in ranks.gather_bytes(to_json(part))]
    found = ranks.gather_bytes(arrays)
    failures = [each for each in parts if "failure" in each]
    own = b"{}"
    if ranks.rank == 0 and not failures:
        own = _commit(checkpoints, snapshot, shards, step, ends, parts, found)
    said = from_json(ranks.gather_bytes(own)[0], "the answer of rank 0")
    for each in (*failures, said):
        if "failure" in each:
            raise CheckpointError(each["failure"])
    return str(said["name"])


def save_agent(training: Training, checkpoints: Checkpoints, snapshot: Snapshot) -> None:
    """Saves an agent of a loop of the user's own; of several ranks, all together."""
    if training.ranks.size == 1:
        checkpoints.save(snapshot, training.shards, training.steps)
        return
    seed = training.config.run.start.seed
    save_together(training.ranks, checkpoints, snapshot, training.shards, training.steps, None, seed)


def _part(snapshot: Snapshot, saved: Mapping[str, SavedShard]) -> dict[str, Any]:
    notes = {name: snapshot.notes[name] for name in OWN_NOTES if name in snapshot.notes}
    replay = {name: each.to_json() for name, each in saved.items()}
    return {"values": snapshot.values, "notes": notes, "replay": replay}


def _own_arrays(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: each for name, each in arrays.items() if not name.startswith("learner/") or name in OWN_OF_LEARNER}


def _commit(
    checkpoints: Checkpoints,
    snapshot: Snapshot,
    shards: Mapping[str, Shard],
    step: int,
    ends: Mapping[str, int] | None,
    parts: list[dict[str, Any]],
    found: list[bytes],
) -> bytes:
    """Rank 0 saves its own part and those of the others; the name, or the reason why it could not."""
    arrays, others = dict(snapshot.arrays), list(range(1, len(parts)))
    replay: dict[str, SavedShard] = {}
    for rank in others:
        where = f"the part of rank {rank}"
        arrays |= {f"{RANKS}/{rank}/{name}": each for name, each in decode_arrays(found[rank], where).items()}
        replay |= {name: SavedShard.from_json(each, where) for name, each in parts[rank]["replay"].items()}
    values = {**snapshot.values, SEEDS: [each["seed"] for each in parts]}
    values[RANKS] = [parts[rank]["values"] for rank in others]
    notes = {**snapshot.notes, RANKS: [parts[rank]["notes"] for rank in others]}
    try:
        name = checkpoints.save(Snapshot(arrays, values, notes), shards, step, ends, replay)
    except CheckpointError as error:
        return to_json({"failure": str(error)})
    return to_json({"name": name})


def size_of(snapshot: Snapshot) -> int:
    """How many ranks made a checkpoint."""
    return 1 + len(snapshot.values.get(RANKS, ()))


def saved_seed(snapshot: Snapshot, config: Config, ranks: Ranks) -> int:
    """The seed of a rank that goes on from a checkpoint: that which it had, or a new one where their number differs."""
    seed, made = config.run.start.seed, size_of(snapshot)
    if made != ranks.size:
        return own_seed(seed, ranks.rank, 1 + int(snapshot.values["steps"]))
    return int(snapshot.values.get(SEEDS, [seed])[ranks.rank])


def part_of(snapshot: Snapshot, rank: int) -> Snapshot:
    """The snapshot of one rank, as it was when the checkpoint was made."""
    values = {name: each for name, each in snapshot.values.items() if name not in (RANKS, SEEDS)}
    shared = {name: array for name, array in snapshot.arrays.items() if not name.startswith(f"{RANKS}/")}
    if rank == 0:
        return Snapshot(shared, values, snapshot.notes)
    common = {name: array for name, array in shared.items() if name.startswith("learner/")}
    arrays = common | select_prefix(snapshot.arrays, f"{RANKS}/{rank}/")
    return Snapshot(arrays, snapshot.values[RANKS][rank - 1], {**snapshot.notes, **snapshot.notes[RANKS][rank - 1]})
