"""Worker processes whose rows go into queues of rollouts: the parent's side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from offbeat.collect.collector import CollectorReport, CollectorState
from offbeat.collect.context import CollectorContext
from offbeat.collect.hosts import Host
from offbeat.collect.processes import Processes
from offbeat.collect.stepper import UNLIMITED
from offbeat.collect.worker_slot import WorkerSlot
from offbeat.replay.queue import Rollout, RolloutQueue
from offbeat.types import Array, Chunk, Episode

SEVERAL_WORKERS = -1
"""`Chunk.worker` of rows that several workers made. Such chunks have one sequence of their own, with boot 0."""


@runtime_checkable
class RolloutConsumer(Protocol):
    """What learns from rollouts."""

    def wants(self) -> bool:
        """Whether to learn from a newer rollout, if there is one."""
        ...

    def oldest(self) -> int:
        """The oldest version of the weights whose rollouts are still used."""
        ...

    def hold(self, rollouts: list[Rollout]) -> Chunk:
        """Takes over rollouts, to learn from them as one; returns their rows."""
        ...


@dataclass(eq=False)
class QueueSlot(WorkerSlot[RolloutQueue]):
    """A worker with a queue of rollouts. episodes: finished in rollouts to come. restored: rows before the resume."""

    episodes: list[Episode] = field(default_factory=list)
    restored: int = 0

    @property
    def stored(self) -> int:
        return self.store.written


class RolloutProcesses(Processes[QueueSlot]):
    """Workers that make rollouts while their queues have room.

    A rollout is taken out when `consumer` wants one. synchronous: one of each worker at a time, and the next ones begin
    only when `allow` is called again.
    """

    slot_type = QueueSlot

    def __init__(self, context: CollectorContext, consumer: RolloutConsumer, host: Host | None = None) -> None:
        self._consumer, self._synchronous = consumer, context.synchronous
        self._turn = self._allowed = self._joint_rows = 0
        super().__init__(context, host)

    def oldest_version(self) -> None:
        """None: rollouts that are too old are dropped, so the learner never waits for them."""

    def allow(self, steps: int) -> None:
        self._allowed, polled = steps, self.polled_rows
        for slot in self._slots:
            slot.control.other_rows = polled - (slot.polled - slot.restored) + self._context.other_rows()
            if polled > steps:
                slot.control.permit = 0
            elif self._synchronous:
                slot.control.permit = slot.store.counts().taken + 1
            else:
                slot.control.permit = UNLIMITED

    def _new_chunks(self) -> list[Chunk]:
        for slot in self._all_slots:
            slot.episodes += self._finished(slot, slot.control.episodes_sent)  # always: a full ring blocks the worker
            slot.store.discard(self._consumer.oldest())
        if self.polled_rows > self._allowed or not self._consumer.wants():
            return []
        taken = self._take_all() if self._synchronous else self._take_one()
        return [self._chunk(taken)] if taken else []

    def _chunk(self, taken: list[tuple[QueueSlot, Rollout]]) -> Chunk:
        """Hands rollouts to the consumer; their rows, with the episodes that ended since the last rollout."""
        first, rollout = taken[0]
        if len(taken) == 1:
            key = first.worker, first.boot_of(rollout.number)[0], first.polled
        else:
            key = SEVERAL_WORKERS, 0, self._joint_rows
        for slot, each in taken:
            slot.polled += int(each.valid.sum())
        chunk = self._consumer.hold([each for _, each in taken])
        chunk.worker, chunk.boot, chunk.sequence = key
        if len(taken) > 1:
            self._joint_rows += len(chunk)
        chunk.calls = first.store.steps
        for slot in self._all_slots:
            chunk.finished += tuple(slot.episodes)
            slot.episodes.clear()
        return chunk

    def _take_one(self) -> list[tuple[QueueSlot, Rollout]]:
        """The next rollout, of the workers in turn."""
        slots = self._all_slots
        for _ in slots:
            slot = slots[self._turn % len(slots)]
            self._turn += 1
            if (rollout := slot.store.take()) is not None:
                return [(slot, rollout)]
        return []

    def _take_all(self) -> list[tuple[QueueSlot, Rollout]]:
        """One rollout of each worker, and what workers that have left still have."""
        if any(slot.store.counts().full == 0 for slot in self._slots):
            return []
        taken = [(slot, slot.store.take()) for slot in self._all_slots]
        return [(slot, rollout) for slot, rollout in taken if rollout is not None]

    def report(self) -> CollectorReport:
        counts = [slot.store.counts() for slot in self._all_slots]
        lost = {
            "dropped_rollouts": sum(each.dropped for each in counts),
            "stale_rollouts": sum(each.stale for each in counts),
            "abandoned_rollouts": sum(each.abandoned for each in counts),
        }
        report = super().report()
        return replace(report, numbers={**report.numbers, **lost}, lost={**report.lost, **lost})

    def snapshot(self) -> CollectorState:
        """Episode numbers and counts alone: rollouts that were not taken are not part of the run yet."""
        workers = [{**self._values(slot), "rows": slot.polled} for slot in self._slots]
        values = {"collectors": workers, "earlier_rows": self._earlier(), "joint_rows": self._joint_rows}
        return CollectorState({}, values)

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        super().restore(arrays, values)
        self._joint_rows = values.get("joint_rows", 0)
        return ["collectors begin new episodes: a checkpoint does not hold the rollouts that they were collecting"]

    def _restore_slot(self, slot: QueueSlot, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        slot.restored = slot.polled
