"""Worker processes whose rows go into shards of replay: the parent's side."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from offbeat.collect.collector import CollectorState
from offbeat.collect.context import CollectorContext
from offbeat.collect.control import BUSY, STARTING
from offbeat.collect.hosts import Host
from offbeat.collect.processes import Processes
from offbeat.collect.worker_slot import WorkerSlot, WorkerState
from offbeat.memory import fence
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk

SECONDS_FOR_SNAPSHOT = 5.0


@dataclass(eq=False)
class ShardSlot(WorkerSlot[Shard]):
    """A worker with a shard. polled_calls: vector steps that belong to the rows polled."""

    polled_calls: int = 0

    @property
    def stored(self) -> int:
        return self.store.committed


class ShardProcesses(Processes[ShardSlot]):
    """Workers whose rows stay in their shards; only counts are sent.

    A vector step may begin while at most the allowed steps are made or permitted; each worker has at most
    `collect_ahead` permits. synchronous: no new permit is given before the rows of all earlier ones are polled.
    """

    slot_type = ShardSlot

    def __init__(self, context: CollectorContext, host: Host | None = None) -> None:
        self._max_permits = 1 if context.synchronous else context.collect_ahead
        self._synchronous, self._snapshots = context.synchronous, 0
        super().__init__(context, host)

    def oldest_version(self) -> int | None:
        """Of a worker that is making a step, or of a stored row that is not polled yet."""
        acting = [slot.control.version for slot in self._slots if slot.control.state == BUSY]
        for slot in self._all_slots:
            if slot.polled < slot.store.committed:
                acting.append(int(slot.store.column("version")[slot.polled % slot.store.capacity]))
        return min(acting, default=None)

    def allow(self, steps: int) -> None:
        """A vector step may begin while the steps made and permitted are at most `steps`."""
        polled = self.polled_rows
        for slot in self._slots:
            slot.control.other_rows = polled - slot.polled + self._context.other_rows()
        # Permits that are left are read before rows: a worker stores its rows first and counts the call as stored
        # afterwards. So a step that is stored in between counts twice, which is safe, and never not at all.
        ahead = [(slot.control.permit - slot.control.stored_calls, slot) for slot in self._slots]
        fence()
        if self._synchronous and any(left or slot.polled < slot.store.committed for left, slot in ahead):
            return
        made = self._earlier_rows + sum(slot.store.committed for slot in self._all_slots)
        planned = made + sum(slot.num_envs * max(0, left) for left, slot in ahead)
        while planned <= steps and ahead:
            # The fewest permits left first; among equals the worker that was given the fewest so far.
            left, slot = min(ahead, key=lambda each: (each[0], each[1].control.permit))
            if left >= self._max_permits:
                break
            ahead[ahead.index((left, slot))] = (left + 1, slot)
            slot.control.permit += 1
            planned += slot.num_envs

    def _new_chunks(self) -> list[Chunk]:
        return [chunk for slot in self._all_slots for chunk in self._take(slot, slot.store.committed)]

    def _take(self, slot: ShardSlot, until: int, episodes: int | None = None, calls: int | None = None) -> list[Chunk]:
        """The rows up to `until`, with their episodes and vector steps; each chunk is of one boot."""
        chunks: list[Chunk] = []
        while slot.polled < until:
            boot, end = slot.boot_of(slot.polled)
            stop = until if end is None else min(end, until)
            for chunk in slot.store.view(slot.polled, stop):
                chunk.boot = boot
                chunks.append(chunk)
            slot.polled = stop
        if chunks:
            chunks[-1].finished = tuple(
                self._finished(slot, slot.control.episodes_sent if episodes is None else episodes)
            )
            calls = slot.control.calls if calls is None else calls
            for chunk in chunks:
                chunk.calls, slot.polled_calls = calls - slot.polled_calls, calls
        return chunks

    def snapshot(self) -> CollectorState:
        """Where every worker stands between two steps. Workers keep running; each only reports its position.

        If a worker does not answer in time, because it has ended or hangs, the snapshot has its rows alone, and the
        worker begins new episodes on resume.
        """
        self._snapshots += 1
        for slot in self._slots:
            slot.control.snapshot_requested = self._snapshots
        until = time.monotonic() + SECONDS_FOR_SNAPSHOT
        arrays: dict[str, Array] = {}
        values, chunks = [], [chunk for slot in self._left for chunk in self._take(slot, slot.store.committed)]
        for slot in self._slots:
            state = self._receive_state(slot, until)
            rows, episodes, calls, own = slot.store.committed, None, None, None
            if state is not None:
                arrays |= {f"{slot.worker}/{name}": array for name, array in state[0].items()}
                own = state[1]
                rows, episodes, calls = own["rows"], own["episodes_sent"], own["calls"]
            chunks += self._take(slot, rows, episodes, calls)
            values.append({**self._values(slot), "state": own, "rows": rows})
        ends = {str(slot.worker): slot.polled for slot in self._all_slots}
        return CollectorState(arrays, {"collectors": values, "earlier_rows": self._earlier()}, chunks, ends)

    def _receive_state(self, slot: ShardSlot, until: float) -> WorkerState | None:
        """What the worker reports, or where it is to continue if it has not begun. `_supervise` handles its crashes."""
        begun = slot.state is None or slot.store.committed != slot.state[1]["rows"]
        if not begun and (not self._started or slot.control.state == STARTING):
            return slot.state
        while self._started and slot.child.alive and time.monotonic() < until:
            message = slot.child.receive()
            if message is None:
                time.sleep(self._host.sleeps[0])
            elif message[0] == "snapshot" and message[1][0] == self._snapshots:
                state: WorkerState = message[1][1]
                return state
            else:
                self._handle(slot, message)
        return None

    def _restore_slot(self, slot: ShardSlot, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """The rows are in the shard already."""
        slot.store.cut_gaps()
        slot.state = None if values["state"] is None else (arrays, values["state"])
