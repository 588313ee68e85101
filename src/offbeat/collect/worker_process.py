"""A collector process: `python -m offbeat.collect.worker_process collector 0 ...`, started by `Processes` alone."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from offbeat.collect.children import Parent
from offbeat.collect.context import StepperMaker
from offbeat.collect.control import BUSY, WAITING, Control
from offbeat.collect.worker_slot import WorkerState
from offbeat.envs.infos import portable
from offbeat.errors import EnvironmentHung
from offbeat.memory import Memory, fence
from offbeat.replay.stores import StorePlan, Writer
from offbeat.trace import Trace, open_trace
from offbeat.types import Chunk, RecoveredFault, Step
from offbeat.weights.shared import SharedWeights, WeightsLayout

SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 4e-3
FAULTS_REPORTED = 10
LONGEST_WAIT = 500_000_000
"""ns after which a wait is added to the counter, whether it is over or not."""


@dataclass(frozen=True)
class WorkerJob:
    """Everything that a worker process needs. state: where to continue; None begins new episodes.

    wants_infos: whether to send the final infos of episodes.
    """

    name: str
    make_stepper: StepperMaker
    num_envs: int
    plan: StorePlan
    store: Memory
    control: Memory
    weights: Memory
    layout: WeightsLayout
    generator: dict[str, Any]
    state: WorkerState | None
    trace: tuple[Path, bool] | None
    wants_infos: bool = False


class Worker:
    """Makes vector steps while it has permits, and stores the rows in shared memory."""

    def __init__(self, parent: Parent, job: WorkerJob, trace: Trace) -> None:
        self._parent, self._trace = parent, trace
        control = self._control = Control(job.num_envs, job.control.map())
        control.heartbeat = time.monotonic_ns()
        self._weights, self._loaded = SharedWeights(job.layout, job.weights.map()), 0
        self._rng = np.random.Generator(np.random.PCG64())
        self._rng.bit_generator.state = job.generator
        self._writer: Writer = job.plan.open(job.store.map())
        self._stepper = job.make_stepper(self._writer, self._rng)
        self._stepper.trace, self._wants_infos = trace, job.wants_infos
        signal.signal(signal.SIGUSR1, self._interrupt)
        self._begin(job.state)
        control.stored_calls = control.calls  # a killed process may have counted a call whose rows it did not store

    def _begin(self, state: WorkerState | None) -> None:
        control = self._control
        if state is not None:
            for sentence in self._stepper.restore(*state):
                self._parent.send("note", sentence)
        else:
            self._writer.cut()  # the episodes of the process before this one do not continue
            control.next_episodes[:] = int(control.next_episodes.max()) + 1
            if self._stepper.first_env == control.calls == 0:
                self._stepper.note = lambda sentence: self._parent.send("note", sentence)
            self._stepper.begin(int(control.next_episodes[0]))

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
        self._stepper.close()

    def step(self) -> None:
        """Loads new weights, if there are any, and makes one vector step."""
        control, stepper = self._control, self._stepper
        control.state = BUSY
        if self._writer.may_change_weights and self._weights.count != self._loaded:
            with self._trace("weights"):
                self._loaded = self._weights.count
                publication = self._weights.newest()
                stepper.load(publication)
                control.version = publication.version
        stepper.other_rows = control.other_rows
        stepper.step(self._before_write)
        fence()
        control.stored_calls = control.calls

    def _before_write(self, chunk: Chunk, step: Step) -> None:
        """Sends everything that belongs to the rows, so that the parent has it when it sees them."""
        control = self._control
        # First the episodes: another process in this slot must not begin one of them again, nor one begun since.
        control.next_episodes[:] = step.episode + 1
        for fault in step.faults:
            self._report_fault(fault)
        self._send_episodes(chunk)
        control.calls += 1

    def _report_fault(self, fault: RecoveredFault) -> None:
        control = self._control
        if fault.kind == "not finite":
            control.quarantined_rows += 1
        else:
            control.restarted_environments += 1
        count = control.quarantined_rows + control.restarted_environments
        if count <= FAULTS_REPORTED or count & (count - 1) == 0:  # then only the 16th, the 32nd, ...
            self._parent.send("note", f"one environment was restarted alone ({count} so far): {fault.error}")

    def _send_episodes(self, chunk: Chunk) -> None:
        control = self._control
        for episode in chunk.finished:
            while not control.episode_room and not control.stop:
                self._wait(lambda: control.episode_room > 0)
            if self._wants_infos:
                self._parent.send_while(self._running, "info", (episode.env, episode.episode, portable(episode.info)))
            control.send_episode(episode)

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
        arrays, values = self._stepper.snapshot()
        values["generator"] = self._rng.bit_generator.state
        values["episodes_sent"], values["calls"] = control.episodes_sent, control.calls
        self._parent.send("snapshot", (requested, (arrays, values)))
        control.snapshot_sent = requested

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles the parent's signal after `hang_seconds`: ends the step if the environment's own code is running."""
        if self._stepper.vector.stepping:
            raise EnvironmentHung("it took too long, and was interrupted")


def work(parent: Parent, job: WorkerJob) -> None:
    trace = open_trace(job.trace, job.name)
    try:
        with trace("start"):
            worker = Worker(parent, job, trace)
        worker.run()
    finally:
        trace.close()


if __name__ == "__main__":
    Parent(sys.argv).run(work)
