"""Who plays the evaluation episodes: this process at once, or one beside it while training goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from offbeat.collect.children import SECONDS_TO_CLOSE, Child
from offbeat.collect.control import STARTING, Control
from offbeat.collect.processes import SECONDS_TO_START
from offbeat.envs import Vector
from offbeat.errors import OffbeatError
from offbeat.memory import Memory
from offbeat.policies import Policy
from offbeat.run.evaluate import Evaluation, evaluate
from offbeat.run.evaluator_process import Job
from offbeat.weights.publication import Publication
from offbeat.weights.shared import Layout, SharedWeights, layout_of

SECONDS_BETWEEN_LOOKS = 0.05


class Evaluator(Protocol):
    """Plays the same episodes with whatever weights it is given, and says later what came of it, in their order."""

    @property
    def pending(self) -> int:
        """Evaluations that were asked for and are not known yet."""
        ...

    @property
    def restarts(self) -> int:
        """How often a process that evaluates was started again."""
        ...

    def submit(self, step: int, publication: Publication) -> bool:
        """Asks for an evaluation; False when there was a wish to stop in between, and it has not happened."""
        ...

    def results(self) -> list[Evaluation]:
        """What has become known since the last call."""
        ...

    def processes(self) -> list[dict[str, Any]]: ...

    def close(self) -> None: ...


class InlineEvaluator:
    """Evaluates in this process, at once."""

    pending = restarts = 0

    def __init__(
        self, vector: Vector, policy: Callable[[], Policy], episodes: int, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.vector, self._policy, self._episodes, self.stop = vector, policy, episodes, stop
        self._results: list[Evaluation] = []

    def submit(self, step: int, publication: Publication) -> bool:
        policy = self._policy()
        policy.load(publication.weights)
        try:
            results = evaluate(self.vector, policy, self._episodes, self.stop)
        except (KeyboardInterrupt, OffbeatError):
            if self.stop() and not self.vector.rebuilds:
                return False  # Ctrl-C went to environments in processes of their own, too: their end is our wish
            raise
        if results is not None:
            self._results.append(Evaluation(step, publication.version, *results))
        return results is not None

    def results(self) -> list[Evaluation]:
        found, self._results = self._results, []
        return found

    def processes(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        self.vector.close()


class ProcessEvaluator:
    """Evaluates in a process of its own, one evaluation after the other; a process that dies or hangs is replaced.

    order: what the process is to do, once the weights have a place. hang_seconds: so long an evaluation may stand
    still. `note` is where to say what a person should know.
    """

    def __init__(self, order: Callable[[Memory, Memory, Layout], Job], most_deaths: int, hang_seconds: float) -> None:
        self._order, self._most_deaths, self._hang = order, most_deaths, hang_seconds
        self.note: Callable[[str], None] = print
        self._waiting: deque[tuple[int, Publication]] = deque()
        self._child: Child | None = None
        self._memories: list[Memory] = []
        self._asked_boot, self._next_look = 0, 0.0

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def restarts(self) -> int:
        return 0 if self._child is None else self._child.restarts

    def submit(self, step: int, publication: Publication) -> bool:
        if self._child is None:
            self._child = self._prepared(layout_of(publication.weights))
        self._waiting.append((step, publication))
        self._next_look = 0.0
        return True

    def _prepared(self, layout: Layout) -> Child:
        weights, control = Memory.create(SharedWeights.nbytes(layout)), Memory.create(Control.nbytes(1))
        self._memories = [weights, control]
        self._weights, self._control = SharedWeights(layout, weights.map()), Control(1, control.map())

        def job() -> Job:
            self._control.state, self._control.heartbeat = STARTING, time.monotonic_ns()
            return self._order(weights, control, layout)

        descriptors = [each.descriptor for each in self._memories]
        return Child("evaluation", "offbeat.run.evaluator_process", job, descriptors, self._most_deaths)

    def results(self) -> list[Evaluation]:
        if self._child is None or time.monotonic() < self._next_look:
            return []
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        found: list[Evaluation] = []
        while (message := self._child.receive()) is not None:
            step, _ = self._waiting.popleft()
            found.append(Evaluation(step, *message[1]))
            self._child.progressed()
            self._asked_boot = 0
        if (death := self._child.look()) is not None:
            self.note(f"{death}\nevaluation is started again")
        if self._waiting and self._child.pid is not None:
            self._ask_or_watch(self._child)
        return found

    def _ask_or_watch(self, child: Child) -> None:
        """Asks for the evaluation that comes next, or looks whether the one that was asked for moves."""
        still = (time.monotonic_ns() - self._control.heartbeat) / 1e9
        patience = max(self._hang, SECONDS_TO_START) if self._control.state == STARTING else self._hang
        if self._asked_boot != child.boots:
            self._asked_boot = child.boots
            publication = self._waiting[0][1]
            self._weights.publish(publication.version, publication.weights)
            child.send("evaluate")
        elif still > patience:
            self.note(f"evaluation has not moved for {still:.0f} s and is ended")
            child.kill()

    def processes(self) -> list[dict[str, Any]]:
        if self._child is None:
            return []
        beat = time.time() - (time.monotonic_ns() - self._control.heartbeat) / 1e9
        state = "evaluating" if self._waiting else "waiting"
        return [{"name": "evaluation", "pid": self._child.pid, "state": state, "heartbeat": beat}]

    def close(self) -> None:
        if self._child is not None:
            busy = bool(self._waiting)
            self._child.send("stop")
            self._child.close(time.monotonic() + (0.0 if busy else SECONDS_TO_CLOSE))
        for memory in self._memories:
            memory.close()
