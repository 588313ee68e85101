"""Collectors in worker processes: the learner's side, whatever store they write to and wherever they run."""

from __future__ import annotations

import itertools
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from offbeat.collect.children import SECONDS_TO_CLOSE, check_sendable
from offbeat.collect.collector import CollectorReport
from offbeat.collect.context import CollectorContext
from offbeat.collect.control import BUSY, STARTING, STATES
from offbeat.collect.hosts import ChildProcesses, Host
from offbeat.collect.worker import WorkerJob
from offbeat.collect.worker_slot import WorkerSlot
from offbeat.errors import CheckpointError, UsageError
from offbeat.replay.experience import attach
from offbeat.trace import Trace
from offbeat.types import Array, Chunk, Episode, select_prefix
from offbeat.weights.publication import Publication

SECONDS_BETWEEN_CHECKS = 0.05
MAX_INTERRUPTIONS = 3

SomeSlot = TypeVar("SomeSlot", bound=WorkerSlot[Any])


def shares(num_envs: int, collectors: int) -> list[int]:
    """How many environments each worker has: equal shares, as far as possible."""
    bounds = [num_envs * worker // collectors for worker in range(collectors + 1)]
    return [stop - start for start, stop in itertools.pairwise(bounds)]


class Processes(ABC, Generic[SomeSlot]):
    """Worker processes that write into stores. Processes that end or hang are replaced.

    A subclass for each kind of store is the `Collector`. host: where the processes run; None for child processes.
    Workers may join (`add`) and leave (`remove`) at any time. The rows of a worker that has left stay in its store.
    """

    slot_type: type[SomeSlot]

    def __init__(self, context: CollectorContext, host: Host | None = None) -> None:
        self._context, self._host = context, host or ChildProcesses()
        self._slots: list[SomeSlot] = []
        self._left: list[SomeSlot] = []
        self._workers, self._first_env = itertools.count(), 0
        self._note: Callable[[str], None] = print
        self._trace_file: tuple[Path, bool] | None = None
        self._started = False  # by the first weights
        self._next_check = 0.0
        self._waited = 0.0  # seconds in which `poll` waited for rows
        self._earlier_rows = 0  # of workers that had left before the checkpoint was made
        self._closed = False
        counts = shares(context.num_envs, context.collectors)
        try:
            for count in counts:
                self._add(count, context.num_envs)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _new_chunks(self) -> list[Chunk]:
        """The rows that were stored since the last call, if they are wanted."""

    @abstractmethod
    def _restore_slot(self, slot: SomeSlot, arrays: dict[str, Array], values: dict[str, Any]) -> None: ...

    @property
    def num_envs(self) -> int:
        return sum(slot.num_envs for slot in self._slots)

    @property
    def workers(self) -> list[int]:
        """The numbers of the workers that exist now."""
        return [slot.worker for slot in self._slots]

    @property
    def polled_rows(self) -> int:
        """Rows that `poll` and `snapshot` have returned, of all workers, before the run was resumed too."""
        return self._earlier_rows + sum(slot.polled for slot in self._all_slots)

    @property
    def _all_slots(self) -> list[SomeSlot]:
        """With those of workers that have left, whose rows may still have to be polled."""
        return self._slots + self._left

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None:
        self._note, self._trace_file = note, trace.file

    # Joining and leaving.

    def add(self, num_envs: int) -> int:
        """A further worker with so many environments of its own; returns its number."""
        if num_envs < 1:
            raise UsageError(f"num_envs={num_envs} is out of range: a collector needs at least 1 environment")
        return self._add(num_envs, self.num_envs + num_envs).worker

    def _add(self, num_envs: int, total_envs: int) -> SomeSlot:
        context, first_env = self._context, self._first_env
        check_sendable(context.make_vector(first_env, num_envs), context.make_policy(first_env, num_envs))
        check_sendable(context.reward_shaping)
        worker = next(self._workers)
        plan = context.experience.plan(worker, num_envs, total_envs)
        slot = self.slot_type.create(worker, first_env, num_envs, plan)
        self._first_env += num_envs
        self._slots.append(slot)
        attach(context.experience, slot.store)
        if self._started:
            self._prepare(slot)
            self._supervise_slot(slot)
        return slot

    def remove(self, worker: int) -> None:
        """Stops a worker after its current vector step; its stored rows stay, and are still polled."""
        slot = next((each for each in self._slots if each.worker == worker), None)
        if slot is None:
            raise UsageError(f"worker {worker} does not exist; the workers are {self.workers}")
        self._slots.remove(slot)
        self._left.append(slot)
        self._stop([slot])
        slot.store.cut()  # its episodes do not continue; no process writes to the store any more

    def _stop(self, slots: list[SomeSlot]) -> None:
        """Stops the processes of these slots together, and closes the slots."""
        if self._started:
            until = time.monotonic() + SECONDS_TO_CLOSE
            for slot in slots:
                slot.control.stop = 1
            for slot in slots:
                slot.child.close(until)
                self._receive(slot)
        for slot in slots:
            slot.close()

    # Running.

    def publish(self, publication: Publication) -> None:
        self._host.publish(publication)
        if not self._started:
            self._started = True
            for slot in self._slots:
                self._prepare(slot)
            self._supervise()

    def _prepare(self, slot: SomeSlot) -> None:
        """Gives a slot its process, which `_supervise` starts."""
        slot.child = self._host.handle(slot, lambda: self._job(slot), self._context.max_crashes)

    def _job(self, slot: SomeSlot) -> WorkerJob:
        """What the next process of a slot is to do."""
        context, control = self._context, slot.control
        control.state, control.heartbeat = STARTING, time.monotonic_ns()
        control.snapshot_requested = control.snapshot_sent
        boot = slot.started()
        if slot.state is not None and slot.state[1]["rows"] != slot.stored:
            slot.state = None  # a process has continued from it already
        starts = slot.child.starts.boots
        generator = context.generator(slot.worker, starts) if slot.state is None else slot.state[1]["generator"]
        return WorkerJob(
            name=slot.child.name,
            make_stepper=context.stepper_maker(slot.first_env, slot.num_envs, worker=slot.worker, boot=boot),
            num_envs=slot.num_envs,
            plan=slot.plan,
            generator=dict(generator),
            state=slot.state,
            trace=self._trace_file,
            wants_infos=context.wants_infos,
        )

    def poll(self, timeout: float) -> list[Chunk]:
        start, (pause, longest) = time.monotonic(), self._host.sleeps
        while True:
            now = time.monotonic()
            if now >= self._next_check:
                self._supervise()
            self._host.exchange(idle=timeout > 0)
            chunks = self._new_chunks()
            if chunks:
                self._host.exchange(idle=False)  # what was taken out has made room for more
            if chunks or now - start >= timeout:
                break
            time.sleep(pause)
            pause = min(2 * pause, longest)
        if timeout:
            self._waited += time.monotonic() - start
        return chunks

    def _supervise(self) -> None:
        """Starts processes that are due, receives messages, and replaces processes that ended or hang."""
        self._next_check = time.monotonic() + SECONDS_BETWEEN_CHECKS
        if self._started:
            for slot in self._slots:
                self._supervise_slot(slot)

    def _supervise_slot(self, slot: SomeSlot) -> None:
        if slot.child.pid is not None and slot.stored > slot.stored_at_start:
            slot.child.starts.progressed()  # before a crash is counted; by stored rows, whether they are polled or not
        if (ending := slot.child.supervise()) is not None:
            slot.control.state = STARTING
            self._note(f"{ending}\n{slot.child.name} is restarted; the rows that it has stored stay")
        self._receive(slot)
        self._check_heartbeat(slot)

    def _receive(self, slot: SomeSlot) -> None:
        while (message := slot.child.receive()) is not None:
            self._handle(slot, message)

    def _handle(self, slot: SomeSlot, message: tuple[str, Any]) -> None:
        kind, content = message
        if kind == "note":
            self._note(content)
        elif kind == "info":
            env, episode, info = content
            slot.infos[env, episode] = info

    def _finished(self, slot: SomeSlot, until: int) -> list[Episode]:
        """The episodes up to number `until` that were not received yet, with their final infos if these are sent."""
        episodes = list(slot.control.receive_episodes(until))
        if episodes:
            self._receive(slot)  # an info is sent before its episode
        return [
            replace(each, info=info) if (info := slot.infos.pop((each.env, each.episode), None)) else each
            for each in episodes
        ]

    def _check_heartbeat(self, slot: SomeSlot) -> None:
        """Interrupts the environment of a worker that hangs, and kills the process if that does not help."""
        if slot.child.pid is None:
            return
        seconds, limit = slot.control.silent_seconds, slot.control.timeout(self._context.hang_seconds)
        report = f"{slot.child.name} has not moved for {seconds:.0f} s"
        if seconds < limit:
            slot.interruptions = 0
        elif seconds > 2 * limit or slot.control.state != BUSY:
            self._note(f"{report} and is killed")
            slot.child.kill()
        elif seconds > limit * (1 + slot.interruptions / MAX_INTERRUPTIONS):
            slot.interruptions += 1  # repeated, as the environment's own code may not run when the signal arrives
            self._note(f"{report}: its environment is interrupted")
            slot.child.signal(signal.SIGUSR1)

    # Saving and reporting.

    def _values(self, slot: SomeSlot) -> dict[str, Any]:
        """What every snapshot says of a worker, as JSON."""
        boots = slot.earlier_boots + (slot.child.starts.boots if self._started else 0)
        return {"worker": slot.worker, "boots": boots, "episodes": slot.control.next_episodes.tolist()}

    def _earlier(self) -> int:
        """Rows of workers that have left, which no later snapshot lists."""
        return self._earlier_rows + sum(slot.polled for slot in self._left)

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        if not values:
            for slot in self._slots:
                slot.polled = slot.store.rows
            return []
        saved: list[dict[str, Any]] = values.get("collectors", [])
        if len(saved) != len(self._slots):
            raise CheckpointError(
                f"the checkpoint was made with collectors={len(saved)}, this run has {len(self._slots)}; use the same "
                "number"
            )
        for slot, own in zip(self._slots, saved, strict=True):
            if own["worker"] != slot.worker:
                raise CheckpointError(
                    f"the checkpoint has worker {own['worker']} where this run has worker {slot.worker}; resume with "
                    "the same workers"
                )
            if len(own["episodes"]) != slot.num_envs:
                raise CheckpointError(
                    f"collector {slot.worker} had {len(own['episodes'])} environments in the checkpoint, and has "
                    f"{slot.num_envs} now; use the same num_envs"
                )
        for slot, own in zip(self._slots, saved, strict=True):
            slot.control.next_episodes[:] = own["episodes"]
            slot.polled, slot.earlier_boots = own["rows"], own["boots"]
            self._restore_slot(slot, select_prefix(arrays, f"{slot.worker}/"), own)
        self._earlier_rows = values["earlier_rows"]
        return []

    def report(self) -> CollectorReport:
        slots = self._all_slots
        workers_waited = sum(slot.control.waited_ns for slot in slots) / 1e9
        restarts = sum(slot.child.starts.count for slot in slots) if self._started else 0
        return CollectorReport(
            numbers={"learner_waited": self._waited, "collectors_waited": workers_waited, "restarts": restarts},
            processes=[
                slot.control.status(slot.child.name, slot.child.pid, STATES[slot.control.state])
                for slot in self._slots
                if self._started
            ],
            waits={"learner": self._waited, "collectors": workers_waited},
            restarts=restarts,
            restarted_environments=sum(slot.control.restarted_environments for slot in slots),
            lost={"quarantined_rows": sum(slot.control.quarantined_rows for slot in slots), **self._host.lost()},
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stop(self._slots)
            self._host.close()
