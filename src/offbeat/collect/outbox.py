"""The stores of a worker that shares no memory with the learner: rows wait in them until they are sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.replay.block import pack
from offbeat.replay.queue import RolloutQueue
from offbeat.replay.stores import ShardPlan, Store, StorePlan
from offbeat.types import Array, Chunk, Schema


@dataclass(frozen=True)
class Parcel:
    """What a worker sends at once.

    rows: bytes of packed rows, or of a whole rollout; None for nothing. count: rows. beside: the columns beside them.
    cuts: environments whose last row sent before these does not continue in them.
    """

    rows: Array | None
    count: int = 0
    beside: dict[str, Array] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()


class RowOutbox:
    """A `Writer` of rows for a `Shard` elsewhere. rows: made so far, by the workers before this one too."""

    may_change_weights = True
    whole = False
    """Whether a rollout is whole; rows may be sent at any time."""

    def __init__(self, schema: Schema, rows: int) -> None:
        self._schema, self._row, self._unpacked = schema, schema.row, [each.name for each in schema.unpacked]
        self.rows = rows
        self._pieces: list[bytes | memoryview] = []
        self._beside: list[Any] = []
        self._cuts: list[int] = []

    def continue_at(self, rows: int) -> None:
        self.rows = rows

    def ready(self, permit: int, calls: int) -> bool:
        return calls < permit

    def write(self, chunk: Chunk, valid: Array | None = None, version: int = 0) -> int:
        rows = chunk.rows
        if not isinstance(rows, tuple) or rows[0] is not self._row or self._unpacked:
            rows = pack(chunk.columns, self._schema)
        _, data, count, beside = rows
        self._pieces.append(data)
        if self._unpacked:
            self._beside.append(beside)
        self.rows += count
        return count

    def cut(self, env: int | None = None) -> None:
        """Marks the last row of an environment as truncated, unless it is terminated; a row that was sent, by mail.

        None does nothing: the learner cuts all episodes itself when another worker begins.
        """
        if env is None:
            return
        for index in reversed(range(len(self._pieces))):
            rows = np.frombuffer(bytearray(self._pieces[index]), self._row)  # a copy: chunks are read-only
            if len(found := np.flatnonzero(rows["env"] == env)):
                rows["truncated"][found[-1]] |= not rows["terminated"][found[-1]]
                self._pieces[index] = rows.tobytes()
                return
        self._cuts.append(env)

    def parcel(self) -> Parcel:
        """Everything that waits."""
        pieces, beside, cuts = self._pieces, self._beside, tuple(self._cuts)
        self._pieces, self._beside, self._cuts = [], [], []
        rows = np.frombuffer(b"".join(pieces), np.uint8) if pieces else None
        columns = {name: np.concatenate([each[name] for each in beside]) for name in self._unpacked if beside}
        return Parcel(rows, 0 if rows is None else len(rows) // self._row.itemsize, columns, cuts)


class RolloutOutbox(RolloutQueue):
    """A queue of one rollout, which is sent when it is complete."""

    @property
    def whole(self) -> bool:
        return not self.filling

    def parcel(self) -> Parcel:
        return Parcel(self.take_block())


def open_outbox(plan: StorePlan, rows: int) -> RowOutbox | RolloutOutbox:
    """For the store that `plan` describes. rows: made before."""
    if isinstance(plan, ShardPlan):
        return RowOutbox(plan.schema, rows)
    outbox = RolloutOutbox(plan.schema, plan.steps, plan.num_envs, 1)
    outbox.continue_at(rows)
    return outbox


def deliver(parcel: Parcel, store: Store) -> None:
    """Writes what a worker has sent to the learner's store of that worker."""
    for env in parcel.cuts:
        store.cut(env)
    if parcel.rows is None:
        return
    if isinstance(store, RolloutQueue):
        store.complete(parcel.rows)
    else:
        store.write(Chunk((store.schema.row, parcel.rows.data, parcel.count, parcel.beside)))
