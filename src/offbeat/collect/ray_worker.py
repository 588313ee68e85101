"""A worker inside a Ray actor: it collects when it is called, and returns the rows.

Ray's part of it, which is sent by value, is in `ray_cluster.py`; this module is imported where the actor runs.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from offbeat.collect.control import Control, Progress
from offbeat.collect.outbox import Parcel, open_outbox
from offbeat.collect.worker import Worker, WorkerJob
from offbeat.collect.worker_slot import WorkerState
from offbeat.errors import OffbeatError, PersistentFault
from offbeat.trace import NO_TRACE, Trace, open_trace
from offbeat.types import Episode, Weights
from offbeat.weights.publication import Publication

INTERRUPTIONS = 3
"""Signals to an environment that hangs, until the learner replaces the worker: its own code may not run at once."""


class ModuleMissing(OffbeatError):
    """The node cannot import what the job names."""


@dataclass(frozen=True)
class ActorJob:
    """What the worker is to do. control: words of its block. rows: made before. node: where the learner runs."""

    worker: WorkerJob
    control: bytes
    rows: int
    hang_seconds: float
    node: str


@dataclass(frozen=True)
class CallReport:
    """What a call has made: rows, the state of the counters after them, finished episodes, and messages."""

    parcel: Parcel
    progress: Progress
    episodes: tuple[Episode, ...] = ()
    messages: tuple[tuple[str, Any], ...] = ()


@dataclass
class Mailbox:
    """The link of the worker to the learner: messages wait until the call returns."""

    messages: list[tuple[str, Any]] = field(default_factory=list)

    def send(self, kind: str, content: Any) -> None:
        self.messages.append((kind, content))

    def send_while(self, wanted: Callable[[], bool], kind: str, content: Any) -> None:
        self.send(kind, content)

    def take(self) -> tuple[tuple[str, Any], ...]:
        messages, self.messages = tuple(self.messages), []
        return messages


class RayWorker:
    """Made in the actor's process; `RayActor` calls its methods one after the other."""

    def __init__(self, job: bytes, node: str) -> None:
        threadpool_limits(1)
        try:
            self._job: ActorJob = pickle.loads(job)
        except (ImportError, AttributeError) as error:
            raise ModuleMissing(
                f"{error}. The collector runs on node {os.uname().nodename}, where a module of yours is missing or "
                "different: install it there, or send the directory that contains it with ray_working_dir "
                "(--ray-working-dir .)"
            ) from error
        plan = self._job.worker.plan
        self._control = Control.from_words(self._job.worker.num_envs, self._job.control)
        self._outbox = open_outbox(plan, self._job.rows)
        self._mailbox = Mailbox()
        self._trace: Trace = NO_TRACE
        if node == self._job.node:  # the trace is a file of the learner's machine
            self._trace = open_trace(self._job.worker.trace, self._job.worker.name)
        with self._trace("start"):
            self._worker = Worker(
                self._mailbox, self._job.worker, self._outbox, self._control, self._trace, _never_full, lambda: True
            )
        self._weights: tuple[int, Callable[[], Weights]] | None = None  # that are not loaded yet
        self._idle_since = time.monotonic_ns()
        self._step_began: float | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, lambda number, frame: self._worker.interrupt())
            threading.Thread(target=self._watch, daemon=True).start()

    def begun(self) -> CallReport:
        return CallReport(Parcel(None), self._control.progress(), (), self._mailbox.take())

    def collect(
        self, steps: int, seconds: float, other_rows: int, version: int, weights: Callable[[], Weights] | None
    ) -> CallReport:
        """Makes up to `steps` vector steps, or goes on with a rollout; returns after the step in which `seconds` end.

        weights: fetches those of `version`; None if an earlier call had them.
        """
        control, outbox = self._control, self._outbox
        control.waited_ns += time.monotonic_ns() - self._idle_since
        control.other_rows = other_rows
        if weights is not None:
            self._weights = version, weights
        now, episodes, received = time.monotonic(), list[Episode](), control.episodes_sent
        until, most = now + seconds, control.episode_capacity - len(control.next_episodes)
        for _ in range(steps):
            if self._weights is not None and outbox.may_change_weights:
                self._load(*self._weights)
            self._step_began = now
            self._worker.step()
            now = time.monotonic()
            if control.episodes_sent != received:
                received = control.episodes_sent
                episodes += control.receive_episodes(received)
            if now >= until or outbox.whole or len(episodes) > most:
                break
        self._step_began = None
        with self._trace("send"):
            report = CallReport(outbox.parcel(), control.progress(), tuple(episodes), self._mailbox.take())
        self._idle_since = time.monotonic_ns()
        return report

    def _load(self, version: int, weights: Callable[[], Weights]) -> None:
        with self._trace("weights"):
            # Copies: arrays in Ray's object store are read-only, and stay there as long as they are used.
            copies = {name: np.array(array) for name, array in weights().items()}
            self._worker.load(Publication(version, copies))
            self._weights = None

    def snapshot(self) -> WorkerState:
        with self._trace("snapshot"):
            return self._worker.snapshot()

    def close(self) -> None:
        self._worker.close()
        self._trace.close()

    def _watch(self) -> None:
        """Interrupts a step that takes longer than `hang_seconds`; if that does not help, the learner replaces us."""
        limit = self._job.hang_seconds
        while True:
            time.sleep(min(1.0, limit / 10))
            began = self._step_began
            if began is not None and time.monotonic() - began > limit:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(limit / INTERRUPTIONS)


def _never_full() -> None:
    raise AssertionError("episodes are received after every step, and the ring has room for one of each environment")


def failure(error: BaseException) -> tuple[str, str]:
    """What is reported to the learner instead of a result."""
    if isinstance(error, ModuleMissing):
        return "failed permanently", str(error)
    return "failed permanently" if isinstance(error, PersistentFault) else "failed", traceback.format_exc()
