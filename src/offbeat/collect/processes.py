"""Collectors in processes of their own: the parent's side. Rows stay in shared memory; only counts travel."""

from __future__ import annotations

import itertools
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.collect.children import SECONDS_TO_CLOSE, Child
from offbeat.collect.control import BUSY, STARTING, STATES, Control
from offbeat.collect.process import Job, State
from offbeat.errors import CheckpointError, UsageError
from offbeat.memory import Memory
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk, Schema, Weights
from offbeat.weights.shared import Layout, SharedWeights, layout_of

SECONDS_BETWEEN_LOOKS = 0.05
SHORTEST_NAP, LONGEST_NAP = 20e-6, 500e-6
SECONDS_FOR_SNAPSHOT = 5.0
SECONDS_TO_START = 60.0
MOST_INTERRUPTIONS = 3
VERSIONS_REMEMBERED = 10_000

Order = Callable[["Place", Memory, Layout], Job]
"""What a collector is to do, once the weights have a place."""


@dataclass
class Place:
    """What stays when a collector process ends and another takes its place.

    taken, calls: rows and vector steps that the learner has taken in. began: rows that were there when the process was
    started. state: where the process is to go on from. interrupted: how often, since it last moved.
    """

    worker: int
    first_env: int
    num_envs: int
    shard: Shard
    shard_memory: Memory
    control: Control
    control_memory: Memory
    taken: int = 0
    calls: int = 0
    began: int = 0
    state: State | None = None
    interrupted: int = 0
    child: Child = field(init=False)

    @property
    def memories(self) -> tuple[Memory, Memory]:
        return self.shard_memory, self.control_memory

    def close(self) -> None:
        for memory in self.memories:
            memory.close()

    @classmethod
    def create(cls, worker: int, first_env: int, num_envs: int, schema: Schema, capacity: int) -> Place:
        shard, control = Memory.create(Shard.nbytes(schema, capacity)), Memory.create(Control.nbytes(num_envs))
        place = cls(
            worker,
            first_env,
            num_envs,
            Shard(schema, capacity, worker=worker, buffer=shard.map()),
            shard,
            Control(num_envs, control.map()),
            control,
        )
        place.control.episodes[:] = -1
        return place


def make_places(schema: Schema, num_envs: int, collectors: int, capacity: int) -> list[Place]:
    """Environments and capacity in equal shares, as far as they go."""
    bounds = [num_envs * worker // collectors for worker in range(collectors + 1)]
    try:
        return [
            Place.create(worker, start, stop - start, schema, max(stop - start, capacity * (stop - start) // num_envs))
            for worker, (start, stop) in enumerate(itertools.pairwise(bounds))
        ]
    except (OSError, OverflowError, ValueError) as error:
        size = Shard.nbytes(schema, capacity) / 2**30
        raise UsageError(f"capacity={capacity} needs {size:,.0f} GiB of memory: {error}; use less") from error


class Processes:
    """Collector processes, kept alive. What they write into their shards is told of by `take`.

    A vector step may begin while there are at most `allow`ed steps, made and permitted together; each collector has at
    most `collect_ahead` permits. hang_seconds: a step that takes longer is interrupted; after twice as long, the
    process is replaced. synchronous: there is no new permit before the rows of all earlier ones are taken in. `note` is
    where to say what a person should know.
    """

    def __init__(
        self,
        places: Sequence[Place],
        order: Order,
        *,
        collect_ahead: int,
        hang_seconds: float,
        most_deaths: int,
        synchronous: bool = False,
    ) -> None:
        self._places, self._order = list(places), order
        self.note: Callable[[str], None] = print
        self._ahead, self._hang, self._most_deaths = collect_ahead, hang_seconds, most_deaths
        self._synchronous = synchronous
        self._weights: SharedWeights | None = None
        self._memory: Memory | None = None  # where the weights are
        self._next_look, self._snapshots = 0.0, 0
        self._published: deque[tuple[int, int]] = deque(maxlen=VERSIONS_REMEMBERED)
        self.waited = 0.0  # seconds in which the learner waited for rows

    @property
    def num_envs(self) -> int:
        return sum(place.num_envs for place in self._places)

    @property
    def steps(self) -> int:
        """Rows that were taken in."""
        return sum(place.taken for place in self._places)

    @property
    def restarts(self) -> int:
        return sum(place.child.restarts for place in self._places if self._weights is not None)

    @property
    def collectors_waited(self) -> float:
        """Seconds in which collectors waited for permission, added up."""
        return sum(place.control.waited for place in self._places) / 1e9

    def oldest_version(self) -> int | None:
        """The oldest weights that a collector is acting with, or has acted with in rows that wait to be taken in."""
        acting = [place.control.version for place in self._places if place.control.state == BUSY]
        for place in self._places:
            if place.taken < place.shard.committed:
                acting.append(int(place.shard.column("version")[place.taken % place.shard.capacity]))
        return min(acting, default=None)

    def published_at(self, version: int) -> int | None:
        """When these weights were published, if not long ago (time.monotonic_ns)."""
        return next((when for each, when in reversed(self._published) if each == version), None)

    def numbers(self) -> dict[str, float]:
        """For the log: who waited for whom so far, and how often a collector was replaced."""
        waits = {"learner_waited": self.waited, "collectors_waited": self.collectors_waited}
        return {**waits, "restarts": self.restarts}

    def supervision(self) -> dict[str, Any]:
        """For the summary: the same, and what environments have cost."""
        return {
            "waits": {"learner": self.waited, "collectors": self.collectors_waited},
            "restarts": self.restarts,
            "restarted_environments": sum(place.control.restarted for place in self._places),
            "lost": {"quarantined_rows": sum(place.control.quarantined for place in self._places)},
        }

    def processes(self) -> list[dict[str, Any]]:
        """For status.json."""
        return [
            {
                "name": place.child.name,
                "pid": place.child.pid,
                "state": STATES[place.control.state],
                "heartbeat": time.time() - (time.monotonic_ns() - place.control.heartbeat) / 1e9,
            }
            for place in self._places
            if self._weights is not None
        ]

    def load(self, weights: Weights, version: int) -> None:
        """Publishes weights; the first starts the collectors."""
        first = self._weights is None
        if self._weights is None:
            layout = layout_of(weights)
            self._memory = memory = Memory.create(SharedWeights.nbytes(layout))
            self._weights = SharedWeights(layout, memory.map())
            for place in self._places:
                place.child = self._child(place, memory, layout)
        self._weights.publish(version, weights)
        self._published.append((version, time.monotonic_ns()))
        if first:
            self._look()

    def _child(self, place: Place, memory: Memory, layout: Layout) -> Child:
        def job() -> Job:
            place.control.state, place.control.heartbeat = STARTING, time.monotonic_ns()
            place.control.asked = place.control.answered
            place.began = place.shard.committed
            if place.state is not None and place.state[1]["rows"] != place.began:
                place.state = None  # it was gone on from, and what followed is in the shard
            return self._order(place, memory, layout)

        inherited = [each.descriptor for each in (*place.memories, memory)]
        return Child(f"collector {place.worker}", "offbeat.collect.process", job, inherited, self._most_deaths)

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

    def take(self, timeout: float = 0.0) -> list[Chunk]:
        """The rows that came since the last call, where they stand; waits for some, but not longer than `timeout`."""
        start, nap = time.monotonic(), SHORTEST_NAP
        while True:
            now = time.monotonic()
            if now >= self._next_look:
                self._look()
            chunks = [chunk for place in self._places for chunk in self._taken(place, place.shard.committed)]
            if chunks or now - start >= timeout:
                break
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)
        if timeout:
            self.waited += time.monotonic() - start
        return chunks

    def _taken(self, place: Place, until: int, told: int | None = None, calls: int | None = None) -> list[Chunk]:
        """The rows up to `until`, with the episodes and vector steps that belong to them."""
        chunks = list(place.shard.look(place.taken, until))
        place.taken = until
        if chunks:
            place.child.progressed()
            chunks[-1].finished = tuple(place.control.hear(place.control.told if told is None else told))
            calls = place.control.calls if calls is None else calls
            for chunk in chunks:
                chunk.calls, place.calls = calls - place.calls, calls
        return chunks

    def _look(self) -> None:
        """Starts what is due, hears messages, and replaces what has died or hangs."""
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        for place in self._places:
            self._replace(place)
            while (message := place.child.receive()) is not None:
                self._hear(message)
            self._watch(place)

    def _replace(self, place: Place) -> None:
        if (death := place.child.look()) is not None:
            place.control.state = STARTING
            self.note(f"{death}\n{place.child.name} is replaced; the rows that it has written stay")

    def _hear(self, message: tuple[str, Any]) -> None:
        kind, content = message
        if kind == "note":
            self.note(content)

    def _watch(self, place: Place) -> None:
        """A collector that does not move is interrupted, and killed if that does not help."""
        if place.child.pid is None:
            return
        still = (time.monotonic_ns() - place.control.heartbeat) / 1e9
        patience = max(self._hang, SECONDS_TO_START) if place.control.state == STARTING else self._hang
        words = f"{place.child.name} has not moved for {still:.0f} s"
        if still < patience:
            place.interrupted = 0
        elif still > 2 * patience or place.control.state != BUSY:
            self.note(f"{words} and is ended")
            place.child.kill()
        elif still > patience * (1 + place.interrupted / MOST_INTERRUPTIONS):
            place.interrupted += 1  # again, if need be: the environment's own code may not have run at that moment
            self.note(f"{words}: its environment is interrupted")
            place.child.signal(signal.SIGUSR1)

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

    def _answer(self, place: Place, until: float) -> State | None:
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
                self._hear(message)
        return None

    @property
    def ends(self) -> dict[str, int]:
        """One past the last row of each shard that was taken in."""
        return {str(place.worker): place.taken for place in self._places}

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        """Lets every collector go on from a snapshot when it is started; its rows are in the shards already."""
        saved = values.get("collectors", ())
        if len(saved) != len(self._places):
            raise CheckpointError(
                f"the checkpoint was made with collectors={len(saved)}, this run has {len(self._places)}; use the same"
            )
        for place, own in zip(self._places, saved, strict=True):
            prefix = f"{place.worker}/"
            state = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            if len(own["episodes"]) != place.num_envs:
                raise CheckpointError(
                    f"collector {place.worker} had {len(own['episodes'])} environments in the checkpoint, and has "
                    f"{place.num_envs} now; use the same num_envs"
                )
            place.control.episodes[:] = np.asarray(own["episodes"])
            place.taken = own["rows"]
            place.shard.cut_gaps()
            place.state = None if own["state"] is None else (state, own["state"])
        return []

    def close(self) -> None:
        if self._weights is not None:
            until = time.monotonic() + SECONDS_TO_CLOSE
            for place in self._places:
                place.control.stop = 1
            for place in self._places:
                place.child.close(until)
        for place in self._places:
            place.close()
        if self._memory is not None:
            self._memory.close()
