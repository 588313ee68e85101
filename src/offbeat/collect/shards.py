"""Collectors whose rows go into shards of replay: the parent's side."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.collect.control import BUSY, STARTING
from offbeat.collect.process import State
from offbeat.collect.processes import SHORTEST_NAP, Order, Place, Processes, make_control, shares
from offbeat.collect.writers import ShardPlan
from offbeat.errors import UsageError
from offbeat.memory import Memory
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk, Schema

SECONDS_FOR_SNAPSHOT = 5.0


@dataclass
class ShardPlace(Place):
    """A collector with a shard. taken, calls: rows and vector steps that the learner has taken in."""

    shard: Shard = field(kw_only=True)
    taken: int = 0
    calls: int = 0

    @property
    def committed(self) -> int:
        return self.shard.committed

    @classmethod
    def create(cls, worker: int, first_env: int, num_envs: int, schema: Schema, capacity: int) -> ShardPlace:
        memory = Memory.create(Shard.nbytes(schema, capacity))
        shard = Shard(schema, capacity, worker=worker, buffer=memory.map())
        plan = ShardPlan(schema, capacity, worker)
        return cls(worker, first_env, num_envs, plan, memory, *make_control(num_envs), shard=shard)


def make_places(schema: Schema, num_envs: int, collectors: int, capacity: int) -> list[ShardPlace]:
    """Environments and capacity in equal shares."""
    try:
        return [
            ShardPlace.create(worker, first, count, schema, max(count, capacity * count // num_envs))
            for worker, (first, count) in enumerate(shares(num_envs, collectors))
        ]
    except (OSError, OverflowError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # there is memory, but no number for it
        size = Shard.nbytes(schema, capacity) / 2**30
        raise UsageError(f"capacity={capacity} needs {size:,.1f} GiB of memory: {error}; use less") from error


class ShardProcesses(Processes[ShardPlace]):
    """Collectors whose rows stay where they write them, in shards; only counts travel.

    A vector step may begin while there are at most `allow`ed steps, made and permitted together; each collector has at
    most `collect_ahead` permits. synchronous: there is no new permit before the rows of all earlier ones are taken in.
    """

    def __init__(
        self,
        places: Sequence[ShardPlace],
        order: Order[ShardPlace],
        *,
        collect_ahead: int,
        hang_seconds: float,
        most_deaths: int,
        synchronous: bool = False,
    ) -> None:
        super().__init__(places, order, hang_seconds=hang_seconds, most_deaths=most_deaths)
        self._ahead, self._synchronous, self._snapshots = collect_ahead, synchronous, 0

    @property
    def steps(self) -> int:
        """Rows that were taken in."""
        return sum(place.taken for place in self._places)

    def updates_allowed(self, due: int, most: int, updates: int) -> int:
        acting = self.oldest_version()
        return min(due, most, due if acting is None else max(0, acting + most - updates))

    def oldest_version(self) -> int | None:
        """The oldest weights that a collector is acting with, or has acted with in rows that wait to be taken in."""
        acting = [place.control.version for place in self._places if place.control.state == BUSY]
        for place in self._places:
            if place.taken < place.shard.committed:
                acting.append(int(place.shard.column("version")[place.taken % place.shard.capacity]))
        return min(acting, default=None)

    def allow(self, steps: int) -> None:
        """A vector step may begin while the steps made and permitted are at most `steps`."""
        for place in self._places:
            place.control.others = self.steps - place.taken
        ahead = [(place.control.permit - place.control.calls, place) for place in self._places]
        if self._synchronous and any(left or place.taken < place.shard.committed for left, place in ahead):
            return
        planned = sum(place.shard.committed + place.num_envs * max(0, left) for left, place in ahead)
        most = 1 if self._synchronous else self._ahead
        while planned <= steps:
            # The fewest permits left first; among equals whoever has been given least so far.
            left, place = min(ahead, key=lambda each: (each[0], each[1].control.permit))
            if left >= most:
                break
            ahead[ahead.index((left, place))] = (left + 1, place)
            place.control.permit += 1
            planned += place.num_envs

    def _new(self) -> list[Chunk]:
        return [chunk for place in self._places for chunk in self._taken(place, place.shard.committed)]

    def _taken(self, place: ShardPlace, until: int, told: int | None = None, calls: int | None = None) -> list[Chunk]:
        """The rows up to `until`, with the episodes and vector steps that belong to them."""
        chunks = list(place.shard.look(place.taken, until))
        place.taken = until
        if chunks:
            chunks[-1].finished = tuple(self._ended(place, place.control.told if told is None else told))
            calls = place.control.calls if calls is None else calls
            for chunk in chunks:
                chunk.calls, place.calls = calls - place.calls, calls
        return chunks

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any], list[Chunk]]:
        """Where every collector stands, between two of its steps, and the rows up to there that are not taken in yet.

        Nobody stops for longer than it takes to say so. Of one that does not answer (it has died, or hangs) there are
        only the rows, and it would begin new episodes.
        """
        self._snapshots += 1
        for place in self._places:
            place.control.asked = self._snapshots
        until = time.monotonic() + SECONDS_FOR_SNAPSHOT
        arrays: dict[str, Array] = {}
        values, chunks = [], []
        for place in self._places:
            state = self._answer(place, until)
            rows, told, calls = place.shard.committed, None, None
            if state is not None:
                arrays |= {f"{place.worker}/{name}": array for name, array in state[0].items()}
                rows, told, calls = (state[1][name] for name in ("rows", "told", "calls"))
            own = None if state is None else state[1]
            values.append({"state": own, "episodes": place.control.episodes.tolist(), "rows": rows})
            chunks += self._taken(place, rows, told, calls)
        return arrays, {"collectors": values}, chunks

    def _answer(self, place: ShardPlace, until: float) -> State | None:
        """What the collector says, or where it was to begin if it has not begun yet. Deaths are `_look`'s business."""
        begun = place.state is None or place.shard.committed != place.state[1]["rows"]
        if not begun and (self._weights is None or place.control.state == STARTING):
            return place.state
        while self._weights is not None and place.child.alive and time.monotonic() < until:
            message = place.child.receive()
            if message is None:
                time.sleep(SHORTEST_NAP)
            elif message[0] == "snapshot" and message[1][0] == self._snapshots:
                state: State = message[1][1]
                return state
            else:
                self._hear(place, message)
        return None

    @property
    def ends(self) -> dict[str, int]:
        """One past the last row of each shard that was taken in."""
        return {str(place.worker): place.taken for place in self._places}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        """Their rows are in the shards already."""
        for place, own in zip(self._places, self._saved(values), strict=True):
            prefix = f"{place.worker}/"
            state = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            place.control.episodes[:] = np.asarray(own["episodes"])
            place.taken = own["rows"]
            place.shard.cut_gaps()
            place.state = None if own["state"] is None else (state, own["state"])
        return []
