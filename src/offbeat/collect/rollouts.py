"""Collectors whose steps go into queues of rollouts: the parent's side."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.collect.processes import Order, Place, Processes, make_control, shares
from offbeat.collect.writers import QueuePlan
from offbeat.errors import UsageError
from offbeat.memory import Memory
from offbeat.replay.queue import Rollout, RolloutQueue, WhenFull
from offbeat.types import Array, Chunk, Episode, Schema

ALWAYS = 1 << 62
"""A permit that does not end."""

Hold = Callable[[list[tuple[RolloutQueue, Rollout]]], Chunk]
"""Takes rollouts over, one or one of each collector, to be learned from and released; returns their rows."""


@dataclass
class QueuePlace(Place):
    """A collector with a queue of rollouts.

    heard: episodes that belong to rollouts to come. taken: rows that were taken in.
    """

    queue: RolloutQueue = field(kw_only=True)
    heard: list[Episode] = field(default_factory=list)
    taken: int = 0

    @property
    def committed(self) -> int:
        return self.queue.written

    @classmethod
    def create(cls, worker: int, first_env: int, num_envs: int, plan: QueuePlan) -> QueuePlace:
        memory = Memory.create(plan.nbytes)
        queue = plan.queue(memory.map())
        return cls(worker, first_env, num_envs, plan, memory, *make_control(num_envs), queue=queue)


def make_queue_places(
    schema: Schema, num_envs: int, collectors: int, steps: int, slots: int, when_full: WhenFull
) -> list[QueuePlace]:
    """Environments in equal shares, and for each collector a queue of so many rollouts of so many steps."""
    try:
        return [
            QueuePlace.create(worker, first, count, QueuePlan(schema, steps, count, slots, when_full))
            for worker, (first, count) in enumerate(shares(num_envs, collectors))
        ]
    except (OSError, OverflowError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # there is memory, but no number for it
        size = RolloutQueue.nbytes(schema, steps, num_envs, slots) / 2**30
        raise UsageError(
            f"rollouts of rollout_steps={steps} for num_envs={num_envs} need {size:,.0f} GiB of memory: {error}; use "
            "less"
        ) from error


class RolloutProcesses(Processes[QueuePlace]):
    """Collectors that make rollouts while there is room for them in their queues.

    A rollout is taken out when `wants` says so, and handed to `hold`. synchronous: one of each collector at a time, and
    the next are begun only when they are allowed anew. `oldest` says which versions are too old to be learned from.
    """

    def __init__(
        self,
        places: Sequence[QueuePlace],
        order: Order[QueuePlace],
        *,
        hang_seconds: float,
        most_deaths: int,
        synchronous: bool,
        wants: Callable[[], bool],
        oldest: Callable[[], int],
        hold: Hold,
    ) -> None:
        super().__init__(places, order, hang_seconds=hang_seconds, most_deaths=most_deaths)
        self._synchronous, self._wants, self._oldest, self._hold = synchronous, wants, oldest, hold
        self._turn = itertools.cycle(range(len(places)))
        self.steps = self._most = 0

    def allow(self, steps: int) -> None:
        self._most = steps
        for place in self._places:
            place.control.others = self.steps - place.taken
            if self.steps > steps:
                place.control.permit = 0
            elif self._synchronous:
                place.control.permit = place.queue.counts().taken + 1
            else:
                place.control.permit = ALWAYS

    def _new(self) -> list[Chunk]:
        for place in self._places:
            place.heard += self._ended(place, place.control.told)  # always: a collector waits when nobody listens
            place.queue.discard(self._oldest())
        if self.steps > self._most or not self._wants():
            return []
        taken = self._take_all() if self._synchronous else self._take_one()
        if not taken:
            return []
        for place, rollout in taken:
            place.taken += int(rollout.valid.sum())
        chunk = self._hold([(place.queue, rollout) for place, rollout in taken])
        self.steps += len(chunk)
        chunk.calls = self._places[0].queue.steps
        for place in self._places:
            chunk.finished += tuple(place.heard)
            place.heard.clear()
        return [chunk]

    def _take_one(self) -> list[tuple[QueuePlace, Rollout]]:
        """Of the collectors in turn."""
        for _ in self._places:
            place = self._places[next(self._turn)]
            if (rollout := place.queue.take()) is not None:
                return [(place, rollout)]
        return []

    def _take_all(self) -> list[tuple[QueuePlace, Rollout]]:
        if any(place.queue.counts().full == 0 for place in self._places):
            return []
        taken = [(place, place.queue.take()) for place in self._places]
        return [(place, rollout) for place, rollout in taken if rollout is not None]

    def updates_allowed(self, due: int, most: int, updates: int) -> int:
        """All: rollouts that are too old are dropped, and nobody waits for them."""
        return due

    @property
    def ends(self) -> None:
        return None

    def numbers(self) -> dict[str, float]:
        return super().numbers() | self._lost()

    def supervision(self) -> dict[str, Any]:
        found = super().supervision()
        found["lost"] |= self._lost()
        return found

    def _lost(self) -> dict[str, int]:
        """Rollouts that nothing was learned from, and why."""
        counts = [place.queue.counts() for place in self._places]
        return {
            "dropped_rollouts": sum(each.dropped for each in counts),
            "stale_rollouts": sum(each.stale for each in counts),
            "abandoned_rollouts": sum(each.abandoned for each in counts),
        }

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any], list[Chunk]]:
        """Only how far episodes have gone: rollouts that were not taken are not part of the run yet."""
        episodes = [{"episodes": place.control.episodes.tolist()} for place in self._places]
        return {}, {"collectors": episodes, "steps": self.steps}, []

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        for place, own in zip(self._places, self._saved(values), strict=True):
            place.control.episodes[:] = np.asarray(own["episodes"])
        self.steps = int(values["steps"])
        return [
            "the collectors begin new episodes: what they were collecting when the checkpoint was made is not in it"
        ]
