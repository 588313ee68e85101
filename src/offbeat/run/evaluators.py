"""Evaluators: run evaluation episodes in this process, or in another process while training continues."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from offbeat.collect.children import SECONDS_TO_CLOSE, Child
from offbeat.collect.control import STARTING, Control
from offbeat.envs import Vector
from offbeat.errors import OffbeatError
from offbeat.memory import Memory
from offbeat.policies import Policy
from offbeat.run.evaluation import Evaluation, run_episodes
from offbeat.run.evaluator_process import EvaluatorJob
from offbeat.trace import Trace
from offbeat.weights.publication import Publication
from offbeat.weights.shared import SharedWeights, WeightsLayout, weights_layout

SECONDS_BETWEEN_POLLS = 0.05


class Evaluator(Protocol):
    """Evaluates submitted weights on the same episodes each time; results arrive later, in order of submission."""

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None:
        """Called once, before anything else. note: tells the user something. stop: whether the run is to stop."""
        ...

    @property
    def pending(self) -> int:
        """The number of submitted evaluations without a result."""
        ...

    @property
    def restarts(self) -> int:
        """How often the evaluation process was restarted."""
        ...

    def submit(self, step: int, publication: Publication) -> bool:
        """Submits weights for evaluation; False if a stop request cancelled it."""
        ...

    def results(self) -> list[Evaluation]:
        """The evaluations that finished since the last call."""
        ...

    def processes(self) -> list[dict[str, Any]]:
        """The evaluation processes, for status.json."""
        ...

    def close(self) -> None: ...


class InlineEvaluator:
    """Evaluates in this process, within `submit`."""

    pending = restarts = 0

    def __init__(self, vector: Vector, policy: Callable[[], Policy], episodes: int) -> None:
        self.vector, self._policy, self._episodes = vector, policy, episodes
        self.stop: Callable[[], bool] = lambda: False
        self._results: list[Evaluation] = []

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None:
        self.stop = stop

    def submit(self, step: int, publication: Publication) -> bool:
        policy = self._policy()
        policy.load(publication.weights)
        try:
            results = run_episodes(self.vector, policy, self._episodes, self.stop)
        except (KeyboardInterrupt, OffbeatError):
            if self.stop() and not self.vector.rebuilds:
                return False  # Ctrl-C also stopped environments that run in other processes, which caused the error
            raise
        if results is not None:
            self._results.append(Evaluation(step, publication.version, *results))
        return results is not None

    def results(self) -> list[Evaluation]:
        results, self._results = self._results, []
        return results

    def processes(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        self.vector.close()


class NoEvaluator:
    """Evaluates nothing, for runs without evaluations."""

    pending = restarts = 0

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None: ...

    def submit(self, step: int, publication: Publication) -> bool:
        return True

    def results(self) -> list[Evaluation]:
        return []

    def processes(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None: ...


class ProcessEvaluator:
    """Evaluates in a separate process, one evaluation after the other; restarts it if it crashes or hangs.

    max_crashes: the run ends after so many in a row. hang_seconds: the timeout for a missing heartbeat.
    `note` receives messages for the user.
    """

    def __init__(
        self,
        make_vector: Callable[[], Vector],
        make_policy: Callable[[], Policy],
        episodes: int,
        *,
        max_crashes: int,
        hang_seconds: float,
    ) -> None:
        self._make_vector, self._make_policy, self._episodes = make_vector, make_policy, episodes
        self._max_crashes, self._hang_seconds = max_crashes, hang_seconds
        self.note: Callable[[str], None] = print
        self._trace_file: tuple[Path, bool] | None = None
        self._waiting: deque[tuple[int, Publication]] = deque()
        self._child: Child | None = None
        self._memories: list[Memory] = []
        self._requested_boot, self._next_poll = 0, 0.0

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None:
        self.note, self._trace_file = note, trace.file

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def restarts(self) -> int:
        return 0 if self._child is None else self._child.starts.count

    def submit(self, step: int, publication: Publication) -> bool:
        if self._child is None:
            self._child = self._make_child(weights_layout(publication.weights))
        self._waiting.append((step, publication))
        self._next_poll = 0.0
        return True

    def _make_child(self, layout: WeightsLayout) -> Child:
        weights, control = Memory.create(SharedWeights.nbytes(layout)), Memory.create(Control.nbytes(1))
        self._memories = [weights, control]
        self._weights, self._control = SharedWeights(layout, weights.map()), Control(1, control.map())

        def job() -> EvaluatorJob:
            self._control.state, self._control.heartbeat = STARTING, time.monotonic_ns()
            memories = weights, control, layout
            return EvaluatorJob(self._make_vector, self._make_policy, self._episodes, *memories, self._trace_file)

        descriptors = [each.descriptor for each in self._memories]
        return Child("evaluation", "offbeat.run.evaluator_process", job, descriptors, self._max_crashes)

    def results(self) -> list[Evaluation]:
        if self._child is None or time.monotonic() < self._next_poll:
            return []
        self._next_poll = time.monotonic() + SECONDS_BETWEEN_POLLS
        results: list[Evaluation] = []
        while (message := self._child.receive()) is not None:
            step, _ = self._waiting.popleft()
            results.append(Evaluation(step, *message[1]))
            self._child.starts.progressed()
            self._requested_boot = 0
        if (death := self._child.supervise()) is not None:
            self.note(f"{death}\nthe evaluation process is restarted")
        if self._waiting and self._child.pid is not None:
            self._request_or_check(self._child)
        return results

    def _request_or_check(self, child: Child) -> None:
        """Requests the next evaluation from the process, or kills the process if the running one timed out."""
        silent = self._control.silent_seconds
        if self._requested_boot != child.starts.boots:
            self._requested_boot = child.starts.boots
            publication = self._waiting[0][1]
            self._weights.publish(publication.version, publication.weights)
            child.send("evaluate")
        elif silent > self._control.timeout(self._hang_seconds):
            self.note(f"the evaluation process made no progress for {silent:.0f} s and is killed")
            child.kill()

    def processes(self) -> list[dict[str, Any]]:
        if self._child is None:
            return []
        return [self._control.status("evaluation", self._child.pid, "evaluating" if self._waiting else "waiting")]

    def close(self) -> None:
        if self._child is not None:
            busy = bool(self._waiting)
            self._child.send("stop")
            self._child.close(time.monotonic() + (0.0 if busy else SECONDS_TO_CLOSE))
        for memory in self._memories:
            memory.close()
