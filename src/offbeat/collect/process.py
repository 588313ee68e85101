"""A collector process: `python -m offbeat.collect.process collector 0 ...`, started by `Processes` alone."""

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
from offbeat.collect.control import BUSY, WAITING, Control
from offbeat.collect.inline import Inline, Shaping
from offbeat.collect.writers import QueuePlan, ShardPlan
from offbeat.envs.infos import portable
from offbeat.envs.vector import Vector
from offbeat.errors import EnvironmentHung
from offbeat.memory import Memory
from offbeat.policies import Policy
from offbeat.trace import NO_TRACE, Trace, Tracer
from offbeat.types import Array, Chunk, Contained, Schema
from offbeat.weights.shared import Layout, SharedWeights

State = tuple[dict[str, Array], dict[str, Any]]
"""Where a collector stands, as arrays and JSON values."""

SHORTEST_NAP, LONGEST_NAP = 20e-6, 4e-3
FAULTS_TOLD = 10
LONGEST_WAIT = 500_000_000
"""ns after which a wait is told of, whether it is over or not."""


@dataclass(frozen=True)
class Job:
    """Everything that a collector needs. state: where to go on from; None begins new episodes.

    infos: whether somebody wants the final infos of episodes.
    """

    worker: int
    make_vector: Callable[[], Vector]
    make_policy: Callable[[], Policy]
    schema: Schema
    first_env: int
    num_envs: int
    plan: ShardPlan | QueuePlan
    store: Memory
    control: Memory
    weights: Memory
    layout: Layout
    generator: dict[str, Any]
    state: State | None
    random_steps: int
    reward_shaping: Shaping | None
    total_steps: int
    trace: tuple[Path, bool] | None
    infos: bool = False


class Worker:
    """Steps environments while it is permitted to, and writes what comes of it into shared memory."""

    def __init__(self, parent: Parent, job: Job, trace: Trace) -> None:
        self._parent, self._trace = parent, trace
        self._control = Control(job.num_envs, job.control.map())
        self._control.heartbeat = time.monotonic_ns()
        self._writer = job.plan.open(job.store.map())
        self._weights, self._read = SharedWeights(job.layout, job.weights.map()), 0
        self._rng = np.random.Generator(np.random.PCG64())
        self._rng.bit_generator.state = job.generator
        self._vector = job.make_vector()
        signal.signal(signal.SIGUSR1, self._interrupt)
        self._inline = Inline(
            self._vector,
            job.make_policy(),
            job.schema,
            self._rng,
            random_steps=job.random_steps,
            reward_shaping=job.reward_shaping,
            total_steps=job.total_steps,
            first_env=job.first_env,
        )
        self._inline.trace = trace
        self._first_env, self._infos = job.first_env, job.infos
        self._begin(job.state)

    def _begin(self, state: State | None) -> None:
        if state is not None:
            for sentence in self._inline.restore(*state):
                self._parent.send("note", sentence)
        else:
            self._writer.cut()  # the episodes of whoever was here before do not go on
            self._inline.rows = self._writer.rows
            self._control.episodes[:] = int(self._control.episodes.max()) + 1
            if self._first_env == self._control.calls == 0:
                self._inline.note = lambda sentence: self._parent.send("note", sentence)
            self._inline.begin(int(self._control.episodes[0]))

    def run(self) -> None:
        """Until it is told to stop."""
        control = self._control
        while not control.stop:
            control.heartbeat = time.monotonic_ns()
            if control.asked != control.answered:
                with self._trace("snapshot"):
                    self._answer()
            if self._writer.ready(control):
                self.step()
            else:
                control.state = WAITING
                self._wait(lambda: self._writer.ready(control) or control.asked != control.answered)
        self._vector.close()

    def step(self) -> None:
        """One vector step, from the newest weights to rows that the learner can read."""
        control, inline, writer = self._control, self._inline, self._writer
        control.state = BUSY
        if writer.between and self._weights.count != self._read:
            with self._trace("weights"):
                self._read = self._weights.count
                publication, _ = self._weights.newest()
                inline.load(publication.weights, publication.version)
                control.version = publication.version
        writer.begin(control)
        inline.others = control.others
        before, moved = inline.advance()
        with self._trace("write"):
            chunk = inline.chunk(before, moved)
            # First the episodes: whoever takes this collector's place must never begin one of them again, nor those
            # that have begun after them.
            control.episodes[:] = moved.step.episode + 1
            for fault in moved.step.faults:
                self._contain(fault)
            self._tell(chunk)
            control.calls += 1
            writer.write(
                chunk, moved.step.valid
            )  # last: whoever sees the rows has been told of all that belongs to them

    def _contain(self, fault: Contained) -> None:
        """An environment was restarted: what it had begun ends at its last good step."""
        self._writer.cut(self._first_env + fault.env)
        if fault.kind == "not finite":
            self._control.quarantined += 1
        else:
            self._control.restarted += 1
        count = self._control.quarantined + self._control.restarted
        if count <= FAULTS_TOLD or count & (count - 1) == 0:  # then only the 16th, the 32nd, ...
            self._parent.send("note", f"restarted alone ({count} so far): {fault.error}")

    def _tell(self, chunk: Chunk) -> None:
        control = self._control
        for episode in chunk.finished:
            while not control.room and not control.stop:
                self._wait(lambda: control.room > 0)
            if self._infos:
                self._parent.send_while(self._wanted, "info", (episode.env, episode.episode, portable(episode.info)))
            control.tell(episode)

    def _wanted(self) -> bool:
        self._control.heartbeat = time.monotonic_ns()
        return not self._control.stop

    def _wait(self, over: Callable[[], bool]) -> None:
        """Sleeps until it is over, or told to stop, or a while has passed."""
        control, nap, start = self._control, SHORTEST_NAP, time.monotonic_ns()
        with self._trace("wait"):
            while True:
                time.sleep(nap)
                now = control.heartbeat = time.monotonic_ns()
                if over() or control.stop or now - start > LONGEST_WAIT:
                    break
                # A quarter of the wait so far: little is lost at its end, and a long one hardly disturbs the learner.
                nap = min(max(SHORTEST_NAP, (now - start) / 4e9), LONGEST_NAP)
        control.waited += now - start

    def _answer(self) -> None:
        """Sends where it stands, between two steps."""
        asked = self._control.asked
        arrays, values = self._inline.snapshot()
        values["generator"] = self._rng.bit_generator.state
        values["told"], values["calls"] = self._control.told, self._control.calls
        self._parent.send("snapshot", (asked, (arrays, values)))
        self._control.answered = asked

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The parent has waited too long for a step: if the environment's own code runs, it is to end."""
        if self._vector.stepping:
            raise EnvironmentHung("it took too long, and was interrupted")


def work(parent: Parent, job: Job) -> None:
    trace = NO_TRACE if job.trace is None else Tracer(job.trace[0], f"collector {job.worker}", cpu=job.trace[1])
    try:
        with trace("start"):
            worker = Worker(parent, job, trace)
        worker.run()
    finally:
        trace.close()


if __name__ == "__main__":
    Parent(sys.argv).run(work)
