"""Collectors in processes of their own: the parent's side."""

from __future__ import annotations

import itertools
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from offbeat.collect.children import SECONDS_TO_CLOSE, Child
from offbeat.collect.control import BUSY, STARTING, STATES, Control
from offbeat.collect.process import Job, State
from offbeat.collect.writers import QueuePlan, ShardPlan
from offbeat.errors import CheckpointError
from offbeat.memory import Memory
from offbeat.types import Array, Chunk, Episode, Weights
from offbeat.weights.shared import Layout, SharedWeights, layout_of

SECONDS_BETWEEN_LOOKS = 0.05
SHORTEST_NAP, LONGEST_NAP = 20e-6, 500e-6
SECONDS_TO_START = 60.0
MOST_INTERRUPTIONS = 3
VERSIONS_REMEMBERED = 10_000


@dataclass
class Place(ABC):
    """What stays when a collector process ends and another takes its place.

    store: the shared memory that it writes into, laid out as `plan` says. began: what `committed` was when the process
    was started. state: where the process is to go on from. interrupted: how often, since it last moved. infos: final
    infos of episodes that were not heard of yet, by environment and episode.
    """

    worker: int
    first_env: int
    num_envs: int
    plan: ShardPlan | QueuePlan
    store: Memory
    control: Control
    control_memory: Memory
    began: int = 0
    state: State | None = None
    interrupted: int = 0
    infos: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    child: Child = field(init=False)

    @property
    @abstractmethod
    def committed(self) -> int:
        """What was written and counts, in rows or rollouts."""

    @property
    def memories(self) -> tuple[Memory, Memory]:
        return self.store, self.control_memory

    def close(self) -> None:
        for memory in self.memories:
            memory.close()


SomePlace = TypeVar("SomePlace", bound=Place)
Order = Callable[[SomePlace, Memory, Layout], Job]
"""What a collector is to do, once the weights have a place."""


def make_control(num_envs: int) -> tuple[Control, Memory]:
    """A collector's control block, of which no episode has begun."""
    memory = Memory.create(Control.nbytes(num_envs))
    control = Control(num_envs, memory.map())
    control.episodes[:] = -1
    return control, memory


def shares(num_envs: int, collectors: int) -> list[tuple[int, int]]:
    """The first environment of each collector, and how many it has: in equal shares, as far as they go."""
    bounds = [num_envs * worker // collectors for worker in range(collectors + 1)]
    return [(start, stop - start) for start, stop in itertools.pairwise(bounds)]


class Processes(ABC, Generic[SomePlace]):
    """Collector processes, kept alive. What they write into shared memory is told of by `take`.

    hang_seconds: a step that takes longer is interrupted; after twice as long, the process is replaced. `note` is where
    to say what a person should know.
    """

    def __init__(
        self, places: Sequence[SomePlace], order: Order[SomePlace], *, hang_seconds: float, most_deaths: int
    ) -> None:
        self._places, self._order = list(places), order
        self.note: Callable[[str], None] = print
        self._hang, self._most_deaths = hang_seconds, most_deaths
        self._weights: SharedWeights | None = None
        self._memory: Memory | None = None  # where the weights are
        self._next_look = 0.0
        self._published: deque[tuple[int, int]] = deque(maxlen=VERSIONS_REMEMBERED)
        self.waited = 0.0  # seconds in which the learner waited for rows

    @abstractmethod
    def allow(self, steps: int) -> None:
        """Lets collectors go on, until there are more than so many steps."""

    @abstractmethod
    def _new(self) -> list[Chunk]:
        """The rows that came since the last call."""

    @abstractmethod
    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any], list[Chunk]]:
        """Where every collector stands, and the rows up to there that are not taken in yet."""

    @abstractmethod
    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        """Lets every collector go on from a snapshot when it is started; a sentence for whatever is not exact."""

    @abstractmethod
    def updates_allowed(self, due: int, most: int, updates: int) -> int:
        """Of the updates that are due, after so many, those that leave no acting weights further behind than `most`."""

    @property
    @abstractmethod
    def ends(self) -> dict[str, int] | None:
        """One past the last row of each shard that was taken in; None where there are none."""

    @property
    def num_envs(self) -> int:
        return sum(place.num_envs for place in self._places)

    @property
    def restarts(self) -> int:
        return sum(place.child.restarts for place in self._places if self._weights is not None)

    @property
    def collectors_waited(self) -> float:
        """Seconds in which collectors waited for permission, added up."""
        return sum(place.control.waited for place in self._places) / 1e9

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

    def _child(self, place: SomePlace, memory: Memory, layout: Layout) -> Child:
        def job() -> Job:
            place.control.state, place.control.heartbeat = STARTING, time.monotonic_ns()
            place.control.asked = place.control.answered
            place.began = place.committed
            if place.state is not None and place.state[1]["rows"] != place.began:
                place.state = None  # it was gone on from, and what followed is there
            return self._order(place, memory, layout)

        inherited = [each.descriptor for each in (*place.memories, memory)]
        return Child(f"collector {place.worker}", "offbeat.collect.process", job, inherited, self._most_deaths)

    def take(self, timeout: float = 0.0) -> list[Chunk]:
        """The rows that came since the last call, where they stand; waits for some, but not longer than `timeout`."""
        start, nap = time.monotonic(), SHORTEST_NAP
        while True:
            now = time.monotonic()
            if now >= self._next_look:
                self._look()
            chunks = self._new()
            if chunks or now - start >= timeout:
                break
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)
        if timeout:
            self.waited += time.monotonic() - start
        return chunks

    def _look(self) -> None:
        """Starts what is due, hears messages, and replaces what has died or hangs."""
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        for place in self._places:
            self._replace(place)
            self._listen(place)
            self._watch(place)

    def _replace(self, place: SomePlace) -> None:
        if place.child.pid is not None and place.committed > place.began:
            place.child.progressed()  # before its death is counted, and by its own rows, whenever they are taken in
        if (death := place.child.look()) is not None:
            place.control.state = STARTING
            self.note(f"{death}\n{place.child.name} is replaced; what it has written in full stays")

    def _listen(self, place: SomePlace) -> None:
        while (message := place.child.receive()) is not None:
            self._hear(place, message)

    def _hear(self, place: SomePlace, message: tuple[str, Any]) -> None:
        kind, content = message
        if kind == "note":
            self.note(content)
        elif kind == "info":
            env, episode, info = content
            place.infos[env, episode] = info

    def _ended(self, place: SomePlace, told: int) -> list[Episode]:
        """The episodes up to this number that were not heard of yet, with their final infos where these are sent."""
        episodes = list(place.control.hear(told))
        if episodes:
            self._listen(place)  # an info is sent before its episode is told of
        return [
            replace(each, info=info) if (info := place.infos.pop((each.env, each.episode), None)) else each
            for each in episodes
        ]

    def _watch(self, place: SomePlace) -> None:
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

    def _saved(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """What a snapshot says of each collector, if it fits."""
        saved: list[dict[str, Any]] = values.get("collectors", [])
        if len(saved) != len(self._places):
            raise CheckpointError(
                f"the checkpoint was made with collectors={len(saved)}, this run has {len(self._places)}; use the same"
            )
        for place, own in zip(self._places, saved, strict=True):
            if len(own["episodes"]) != place.num_envs:
                raise CheckpointError(
                    f"collector {place.worker} had {len(own['episodes'])} environments in the checkpoint, and has "
                    f"{place.num_envs} now; use the same num_envs"
                )
        return saved

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
