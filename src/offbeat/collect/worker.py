"""A worker: vector steps in, stored rows out, with everything that its parent has to know; wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from offbeat.collect.context import StepperMaker
from offbeat.collect.control import Control
from offbeat.collect.worker_slot import WorkerState
from offbeat.envs.infos import portable
from offbeat.errors import EnvironmentHung
from offbeat.memory import fence
from offbeat.replay.stores import StorePlan, Writer
from offbeat.trace import Trace
from offbeat.types import Chunk, RecoveredFault, Step
from offbeat.weights.publication import Publication

FAULTS_REPORTED = 10


class Link(Protocol):
    """To the parent."""

    def send(self, kind: str, content: Any) -> None: ...

    def send_while(self, wanted: Callable[[], bool], kind: str, content: Any) -> None:
        """Sends a message; gives up when `wanted()` is False, if the parent does not read."""
        ...


@dataclass(frozen=True)
class WorkerJob:
    """What a worker does, wherever it runs. state: where to continue; None begins new episodes.

    wants_infos: whether to send the final infos of episodes.
    """

    name: str
    make_stepper: StepperMaker
    num_envs: int
    plan: StorePlan
    generator: dict[str, Any]
    state: WorkerState | None
    trace: tuple[Path, bool] | None
    wants_infos: bool = False


class Worker:
    """Makes vector steps when it is told to, and stores their rows through `writer`.

    wait_for_room: called while the ring of finished episodes is full.
    """

    def __init__(
        self,
        link: Link,
        job: WorkerJob,
        writer: Writer,
        control: Control,
        trace: Trace,
        wait_for_room: Callable[[], None],
        running: Callable[[], bool],
    ) -> None:
        self._link, self._writer, self._control = link, writer, control
        self._wants_infos, self._wait_for_room, self._running = job.wants_infos, wait_for_room, running
        self._rng = np.random.Generator(np.random.PCG64())
        self._rng.bit_generator.state = job.generator
        self._stepper = job.make_stepper(writer, self._rng)
        self._stepper.trace = trace
        self._begin(job.state)
        control.stored_calls = control.calls  # a killed process may have counted a call whose rows it did not store

    def _begin(self, state: WorkerState | None) -> None:
        control = self._control
        if state is not None:
            for sentence in self._stepper.restore(*state):
                self._link.send("note", sentence)
        else:
            self._writer.cut()  # the episodes of the process before this one do not continue
            control.next_episodes[:] = int(control.next_episodes.max()) + 1
            if self._stepper.first_env == control.calls == 0:
                self._stepper.note = lambda sentence: self._link.send("note", sentence)
            self._stepper.begin(int(control.next_episodes[0]))

    def load(self, publication: Publication) -> None:
        self._stepper.load(publication)
        self._control.version = publication.version

    def step(self) -> None:
        """Makes one vector step."""
        control, stepper = self._control, self._stepper
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
            self._link.send("note", f"one environment was restarted alone ({count} so far): {fault.error}")

    def _send_episodes(self, chunk: Chunk) -> None:
        control = self._control
        for episode in chunk.finished:
            while not control.episode_room and self._running():
                self._wait_for_room()
            if self._wants_infos:
                self._link.send_while(self._running, "info", (episode.env, episode.episode, portable(episode.info)))
            control.send_episode(episode)

    def snapshot(self) -> WorkerState:
        """Where it stands between two steps."""
        control = self._control
        arrays, values = self._stepper.snapshot()
        values["generator"] = self._rng.bit_generator.state
        values["episodes_sent"], values["calls"] = control.episodes_sent, control.calls
        return arrays, values

    def interrupt(self) -> None:
        """Called by a signal handler after `hang_seconds`: ends the step if the environment's own code is running."""
        if self._stepper.vector.stepping:
            raise EnvironmentHung("it took too long, and was interrupted")

    def close(self) -> None:
        self._stepper.close()
