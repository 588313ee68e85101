"""Workers in Ray actors: the learner's side, which does for an actor what a process with shared memory does itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

import offbeat
from offbeat.collect.context import CollectorContext
from offbeat.collect.control import BUSY, STARTING, WAITING
from offbeat.collect.hosts import WorkerHandle
from offbeat.collect.outbox import deliver
from offbeat.collect.ray_cluster import RayCluster
from offbeat.collect.ray_worker import ActorJob, CallReport
from offbeat.collect.restarts import Restarts
from offbeat.collect.worker import WorkerJob
from offbeat.collect.worker_slot import WorkerSlot
from offbeat.replay.queue import RolloutQueue
from offbeat.replay.stores import QueuePlan
from offbeat.weights.publication import Publication

CALLS_IN_FLIGHT = 2
"""While one chunk travels, the next is made. A rollout is made alone, with the newest weights of its begin."""
CALL_SECONDS = 0.1, 2.0
CALLS_PER_SECOND = 500
SECONDS_UNTIL_NOTE = 30.0
SECONDS_AFTER_LOST_NODE = 1.0
SHORTEST_SLEEP = 1e-3


@dataclass(frozen=True)
class Call:
    """A call that has not been answered, or whose answer was not taken. steps, version: what a collect may make."""

    method: str
    future: Future[Any]
    steps: int = 0
    version: int = 0
    snapshot: int = 0


class RayActors:
    """Puts workers into actors of a cluster, and the newest weights into its object store when a worker needs them.

    published: the number of publications. A version may be published again, with other statistics of normalisers.
    abandoned: chunks that were asked for and never came, because their actor or its node was lost.
    """

    sleeps = 200e-6, 1e-3

    def __init__(self, context: CollectorContext, cluster: RayCluster) -> None:
        self.cluster, self.hang_seconds = cluster, context.hang_seconds
        self._rollouts = isinstance(context.experience.plan(0, 1, context.num_envs), QueuePlan)
        self.chunk = max(1, -(-context.collect_ahead // CALLS_IN_FLIGHT))
        self.seconds = call_seconds(context.collectors, context.hang_seconds)
        # While the learner is busy, a worker gets no less than this at once: a call costs a millisecond.
        self.least = max(1, min(self.chunk, context.slack // 2))
        self._handles: list[ActorHandle] = []
        self._publication: Publication | None = None
        self._reference: Any = None
        self.published = self.abandoned = 0

    def publish(self, publication: Publication) -> None:
        self._publication, self._reference = publication, None
        self.published += 1

    @property
    def version(self) -> int:
        assert self._publication is not None
        return self._publication.version

    def weights(self) -> list[Any]:
        """A reference to the newest weights, in a list, so that Ray does not fetch them before they are needed."""
        assert self._publication is not None
        if self._reference is None:
            self._reference = self.cluster.put(dict(self._publication.weights))
        return [self._reference]

    def handle(self, slot: WorkerSlot[Any], job: Callable[[], WorkerJob], max_crashes: int) -> WorkerHandle:
        handle = ActorHandle(self, slot, job, max_crashes)
        self._handles.append(handle)
        return handle

    def exchange(self, idle: bool) -> None:
        self.cluster.check()
        for handle in self._handles:
            handle.exchange(idle)

    def lost(self) -> Mapping[str, int]:
        return {} if self._rollouts else {"abandoned_chunks": self.abandoned}

    def close(self) -> None:
        self.cluster.close()


def call_seconds(collectors: int, hang_seconds: float) -> float:
    """After which a call returns: longer with many collectors, because the learner takes only so many answers a second.

    A slow environment is then no reason to take the actor for lost, and a checkpoint does not wait long.
    """
    least, most = CALL_SECONDS
    return min(max(least, collectors / CALLS_PER_SECOND), most, hang_seconds / 4)


def bytes_on_the_way(context: CollectorContext) -> int:
    """That the chunks or rollouts of all collectors may take in the object store at once."""
    plan = context.experience.plan(0, context.num_envs, context.num_envs)
    if isinstance(plan, QueuePlan):
        return plan.nbytes // plan.slots * CALLS_IN_FLIGHT
    beside = sum(each.size * np.dtype(each.dtype).itemsize for each in plan.schema.unpacked)
    return (plan.schema.row.itemsize + beside) * context.collect_ahead * context.num_envs


class ActorHandle:
    """The actor of a slot. Calls are answered in their order; answers change the slot's store and control block."""

    def __init__(self, host: RayActors, slot: WorkerSlot[Any], job: Callable[[], WorkerJob], max_crashes: int) -> None:
        self.name = f"collector {slot.worker}"
        self.starts = Restarts(self.name, max_crashes)
        self._host, self._slot, self._job = host, slot, job
        self._actor: Any = None
        self._pid: int | None = None
        self._calls, self._messages = deque[Call](), deque[tuple[str, Any]]()
        self._ending: tuple[str, str, bool] | None = None  # how, traceback, permanent
        self._began, self._noted, self._closed = 0.0, False, False
        self._given = 0  # the number of the publication that the actor has or gets
        self._known: tuple[int, int, bool] | None = None  # what calls were made for

    @property
    def pid(self) -> int | None:
        """On its own node; None before it is known."""
        return self._pid

    @property
    def alive(self) -> bool:
        return self._actor is not None and self._ending is None

    def _start(self) -> None:
        slot, host = self._slot, self._host
        job = self._job()
        self.starts.boots += 1
        if job.state is None:
            slot.store.cut()  # no row after the last one that arrived
        rows = slot.store.rows
        if isinstance(slot.store, RolloutQueue):
            rows = slot.store.written * slot.store.steps * slot.store.num_envs
        actor_job = ActorJob(job, slot.control.copied_words(), rows, host.hang_seconds, host.cluster.node)
        self._actor, self._began, self._noted = host.cluster.make_actor(), time.monotonic(), False
        self._given = 0
        self._call("where")
        self._call("begin", cloudpickle.dumps(actor_job))

    def _call(self, method: str, *arguments: Any, **known: int) -> None:
        self._known = None
        self._calls.append(Call(method, self._host.cluster.call(self._actor, method, *arguments), **known))

    # What is due, and what has come.

    def exchange(self, idle: bool) -> None:
        """Takes answers, and makes the calls that are due. idle: the learner waits for rows."""
        if not self.alive:
            return
        control = self._slot.control
        if self._pid is not None and self._calls and not self._calls[0].future.done():
            known = control.permit, control.snapshot_requested, idle
            if known == self._known:
                return  # nothing has come, and nothing more is due: the usual case while the learner waits
            self._known = known
        while self._calls and self._calls[0].future.done() and self._take(self._calls[0]):
            self._calls.popleft()
            control.heartbeat = time.monotonic_ns()
        if self._closed or not self._running():
            return
        if self._pid is None:
            self._note_waiting()
            return
        if control.snapshot_requested != control.snapshot_sent and not self._in_flight("snapshot"):
            self._call("snapshot", snapshot=control.snapshot_requested)
        if control.state != STARTING:
            self._collect(idle)
            flying = [call for call in self._calls if call.method == "collect"]
            control.state = BUSY if flying else WAITING
            if flying:
                control.version = flying[0].version
        if not self._calls:
            control.heartbeat = time.monotonic_ns()

    def _running(self) -> bool:
        return self.alive

    def _in_flight(self, method: str) -> bool:
        return any(call.method == method for call in self._calls)

    def _collect(self, idle: bool) -> None:
        """Asks for chunks while there are permits, or for a rollout while the queue has room."""
        slot, control, host = self._slot, self._slot.control, self._host
        flying = [call for call in self._calls if call.method == "collect"]
        if isinstance(slot.store, RolloutQueue):
            if not flying and slot.store.ready(control.permit, 0):
                if not slot.store.filling:
                    slot.store.begin(host.version)
                self._ask(slot.store.steps)
            return
        left = control.permit - control.stored_calls - sum(call.steps for call in flying)
        least = 1 if idle and not flying else host.least
        while left >= least and len(flying) < CALLS_IN_FLIGHT:
            steps = min(left, host.chunk)
            self._ask(steps)
            flying, left = [*flying, self._calls[-1]], left - steps

    def _ask(self, steps: int) -> None:
        host = self._host
        if not self._calls:
            self._slot.control.heartbeat = time.monotonic_ns()
        # The reference only once: each that is passed makes the actor's node report when it needs it no more.
        weights = host.weights() if self._given != host.published else []
        self._given = host.published
        arguments = steps, host.seconds, self._slot.control.other_rows, host.version, weights
        self._call("collect", *arguments, steps=steps, version=host.version)

    def _take(self, call: Call) -> bool:
        """Takes an answer; False if it stays: until finished episodes are received, or as one that failed."""
        if (error := call.future.exception()) is not None:
            self._ending = _how(error), "", False
            return False
        status, answer = call.future.result()
        if status != "done":
            self._ending = "failed", answer, status == "failed permanently"
            return False
        if call.method == "where":
            self._know(*answer)
        elif call.method == "snapshot":
            self._slot.control.snapshot_sent = call.snapshot
            self._messages.append(("snapshot", (call.snapshot, answer)))
        elif call.method != "close":
            return self._store(call, answer)
        return True

    def _know(self, version: str, pid: int, address: str) -> None:
        self._pid, self._slot.control.heartbeat = pid, time.monotonic_ns()
        if version != offbeat.__version__:
            how = f"has Offbeat {version} on node {address}, but the learner has {offbeat.__version__}"
            self._ending = how, "Install the same version, or send it with ray_working_dir", True

    def _store(self, call: Call, report: CallReport) -> bool:
        slot, control = self._slot, self._slot.control
        if control.episode_room < len(report.episodes):
            return False
        self._messages.extend(report.messages)
        for episode in report.episodes:
            control.send_episode(episode)
        deliver(report.parcel, slot.store)
        control.report(report.progress)
        if call.method == "begin":
            control.state = WAITING
        elif report.parcel.rows is not None:
            self.starts.progressed()
        return True

    def _note_waiting(self) -> None:
        """The cluster may have no room for the actor yet: that is no reason to end it."""
        self._slot.control.heartbeat = time.monotonic_ns()
        if not self._noted and time.monotonic() - self._began > SECONDS_UNTIL_NOTE:
            self._noted = True
            self._messages.append(
                (
                    "note",
                    f"{self.name} has waited {SECONDS_UNTIL_NOTE:.0f} s for a place in the Ray cluster: it needs "
                    f"{self._host.cluster.needs()} (`ray status` shows what is free). It starts as soon as there is "
                    "room; otherwise use fewer collectors, or a smaller ray_cpus",
                )
            )

    # Supervision.

    def supervise(self) -> str | None:
        if self._actor is None:
            if self.starts.due:
                self._start()
            return None
        self.exchange(idle=False)
        if self._ending is None:
            return None
        (how, trace, permanent), began = self._ending, self._pid is not None
        self._clean_up()
        if began or trace:
            return self.starts.ended(how, trace, permanent)
        self.starts.postpone(SECONDS_AFTER_LOST_NODE)  # its node was lost before it ran
        return f"{self.name} {how}"

    def receive(self) -> tuple[str, Any] | None:
        self.exchange(idle=False)
        return self._messages.popleft() if self._messages else None

    def signal(self, number: int) -> None:
        """Nothing: the actor interrupts its environment itself, after the same time."""

    def kill(self) -> None:
        if self._actor is not None:
            self._host.cluster.kill(self._actor)

    def close(self, until: float) -> None:
        """Lets it finish the calls that it has begun, and close its environments."""
        if self._actor is None:
            return
        if self._ending is None and not self._closed:
            self._closed = True
            if self._pid is not None:
                self._call("close")
            while self._calls and self._pid is not None and self._ending is None and time.monotonic() < until:
                self.exchange(idle=False)
                time.sleep(SHORTEST_SLEEP)
        self._clean_up()

    def _clean_up(self) -> None:
        """Discards what has not arrived, and counts it."""
        if isinstance(self._slot.store, RolloutQueue):
            self._slot.store.abandon()
        else:
            self._host.abandoned += sum(call.method == "collect" for call in self._calls)
        self.kill()
        self._calls.clear()
        self._actor = self._pid = self._ending = None


def _how(error: BaseException) -> str:
    """The reason that Ray gives, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    reasons = [line for line in lines if line.startswith(("The actor", "Worker")) and ":" not in line[:12]]
    return f"was lost ({type(error).__name__}: {(reasons or lines or [''])[-1]:.300})"
