"""A collector process: `python -m offbeat.collect.worker_process collector 0 ...`, started by `Processes` alone."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from offbeat.collect.children import Parent
from offbeat.collect.control import BUSY, WAITING, Control
from offbeat.collect.worker import Worker, WorkerJob
from offbeat.memory import Memory
from offbeat.replay.stores import Writer
from offbeat.trace import Trace, open_trace
from offbeat.weights.shared import SharedWeights, WeightsLayout

SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 4e-3
LONGEST_WAIT = 500_000_000
"""ns after which a wait is added to the counter, whether it is over or not."""


@dataclass(frozen=True)
class ProcessJob:
    """The job of a worker process, and the memory that it shares with its parent."""

    worker: WorkerJob
    store: Memory
    control: Memory
    weights: Memory
    layout: WeightsLayout


class WorkerProcess:
    """Makes vector steps while it has permits, and stores the rows in shared memory."""

    def __init__(self, parent: Parent, job: ProcessJob, trace: Trace) -> None:
        self._parent, self._trace = parent, trace
        control = self._control = Control(job.worker.num_envs, job.control.map())
        control.heartbeat = time.monotonic_ns()
        self._weights, self._loaded = SharedWeights(job.layout, job.weights.map()), 0
        self._writer: Writer = job.worker.plan.open(job.store.map())
        self._worker = Worker(
            parent,
            job.worker,
            self._writer,
            control,
            trace,
            lambda: self._wait(lambda: control.episode_room > 0),
            self._running,
        )
        signal.signal(signal.SIGUSR1, lambda number, frame: self._worker.interrupt())

    def run(self) -> None:
        """Collects until the parent sets `stop`."""
        control, writer = self._control, self._writer

        def ready() -> bool:
            return writer.ready(control.permit, control.calls)

        while not control.stop:
            control.heartbeat = time.monotonic_ns()
            if control.snapshot_requested != control.snapshot_sent:
                with self._trace("snapshot"):
                    self._send_snapshot()
            if ready():
                self.step()
            else:
                control.state = WAITING
                self._wait(lambda: ready() or control.snapshot_requested != control.snapshot_sent)
        self._worker.close()

    def step(self) -> None:
        """Loads new weights, if there are any, and makes one vector step."""
        self._control.state = BUSY
        if self._writer.may_change_weights and self._weights.count != self._loaded:
            with self._trace("weights"):
                self._loaded = self._weights.count
                self._worker.load(self._weights.newest())
        self._worker.step()

    def _running(self) -> bool:
        self._control.heartbeat = time.monotonic_ns()
        return not self._control.stop

    def _wait(self, over: Callable[[], bool]) -> None:
        """Sleeps until `over()`, `stop`, or LONGEST_WAIT."""
        control, pause, start = self._control, SHORTEST_SLEEP, time.monotonic_ns()
        with self._trace("wait"):
            while True:
                time.sleep(pause)
                now = control.heartbeat = time.monotonic_ns()
                if over() or control.stop or now - start > LONGEST_WAIT:
                    break
                # A quarter of the wait so far: little time is lost at its end, and a long wait costs little CPU.
                pause = min(max(SHORTEST_SLEEP, (now - start) / 4e9), LONGEST_SLEEP)
        control.waited_ns += now - start

    def _send_snapshot(self) -> None:
        control = self._control
        requested = control.snapshot_requested
        self._parent.send("snapshot", (requested, self._worker.snapshot()))
        control.snapshot_sent = requested


def work(parent: Parent, job: ProcessJob) -> None:
    trace = open_trace(job.worker.trace, job.worker.name)
    try:
        with trace("start"):
            worker = WorkerProcess(parent, job, trace)
        worker.run()
    finally:
        trace.close()


if __name__ == "__main__":
    Parent(sys.argv).run(work)
