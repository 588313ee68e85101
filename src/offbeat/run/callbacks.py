"""Callbacks: your code at four moments of a run, each of which may end it.

A callback is any object with at least one of the methods of `Callback`; the others are optional, and a further `on_...`
is taken for a misspelt one. A method that returns a true value ends the run as if it had reached its total; text is the
reason that summary.json and the console give. `event.run` is there to log a number, to ask for a checkpoint and to
change a learning rate. Checkpoints hold nothing of callbacks: what one of yours remembers is yours to keep.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from offbeat.errors import CallbackFault, UsageError

if TYPE_CHECKING:
    from offbeat.run.agent import Agent
    from offbeat.run.evaluate import Evaluation
    from offbeat.types import Chunk


class Hooks:
    """What a callback may ask of the run that calls it: `event.run`."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self.wants_checkpoint = agent, False

    def log(self, name: str, value: Any) -> None:
        """A number of your own: as `Agent.log`. It is in the next line of metrics.jsonl and in every logger."""
        self._agent.log(name, value)

    def save_checkpoint(self) -> None:
        """A checkpoint as soon as the updates that are due are made, before the next step of an environment."""
        self.wants_checkpoint = True

    def set_learning_rate(self, rate: float, group: str | None = None) -> None:
        """As `Agent.set_learning_rate`."""
        self._agent.set_learning_rate(rate, group)


@dataclass(frozen=True)
class Event:
    """Where the run stands. path: its directory; step, updates: environment steps and updates made so far.

    run: to log a number, ask for a checkpoint, or change a learning rate.
    """

    path: Path
    step: int
    updates: int
    run: Hooks


@dataclass(frozen=True)
class ChunkEvent(Event):
    """New experience is in replay; with collectors=0, no update has seen it yet.

    Copy what you keep of the chunk's arrays: with collectors they are replay's own, which are written over in time.
    `chunk.finished` are the episodes that ended in it, each with its `success` and final `info`; of an info from a
    collector there is what `offbeat.envs.infos.portable` leaves.
    """

    method: ClassVar[str] = "on_chunk"
    chunk: Chunk


@dataclass(frozen=True)
class UpdateEvent(Event):
    """`count` updates have just been made: at most 16 at once, or a turn with a rollout.

    Metrics are not among this: on an accelerator, reading them would wait for it. They are in metrics.jsonl.
    """

    method: ClassVar[str] = "on_update"
    count: int
    agent: Agent


@dataclass(frozen=True)
class EvaluationEvent(Event):
    """An evaluation has been made and logged; if it was the best, the best checkpoint is written."""

    method: ClassVar[str] = "on_evaluation"
    evaluation: Evaluation


@dataclass(frozen=True)
class CheckpointEvent(Event):
    """A checkpoint is on disk and verified, and the policy in `policy/` is of the same moment.

    checkpoint: its directory. The first one comes before the first step, the last one after the final evaluation.
    """

    method: ClassVar[str] = "on_checkpoint"
    checkpoint: Path


class Callback(Protocol):
    """What a callback may have. Inheriting from this is possible and never needed."""

    def on_chunk(self, event: ChunkEvent) -> Any:
        """After each poll of the collector."""

    def on_update(self, event: UpdateEvent) -> Any:
        """After each handful of updates."""

    def on_evaluation(self, event: EvaluationEvent) -> Any:
        """After each evaluation, the final one included."""

    def on_checkpoint(self, event: CheckpointEvent) -> Any:
        """After each checkpoint, the final one included."""


METHODS = tuple(event.method for event in (ChunkEvent, UpdateEvent, EvaluationEvent, CheckpointEvent))


@dataclass(frozen=True)
class ReturnReached:
    """Ends a run whose evaluation reaches a mean return: the setting `stop_return`."""

    threshold: float

    def on_evaluation(self, event: EvaluationEvent) -> str | None:
        reached = event.evaluation.mean_return
        if reached >= self.threshold:
            return f"an evaluation's mean return of {reached:.6g} reached stop_return={self.threshold:g}"
        return None


class Callbacks:
    """Several callbacks as one, called in their order. A list with something that is no callback is refused."""

    def __init__(self, callbacks: Iterable[object]) -> None:
        self._methods: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {method: [] for method in METHODS}
        for position, callback in enumerate(callbacks):
            _check(callback, f"callbacks[{position}]")
            for method in METHODS:
                if hasattr(callback, method):
                    self._methods[method].append((f"{_called(callback)}.{method}", getattr(callback, method)))

    def see(self, method: str) -> bool:
        """Whether a callback has this method."""
        return bool(self._methods[method])

    def tell(self, event: ChunkEvent | UpdateEvent | EvaluationEvent | CheckpointEvent) -> str | None:
        """Calls every callback; returns the reason of the first that wants the run to end."""
        reason = None
        for name, method in self._methods[event.method]:
            try:
                answer = method(event)
                wanted = bool(answer)
            except Exception as error:
                raise CallbackFault(
                    f"the callback {name} raised {type(error).__name__} at step {event.step}: {error}; the traceback "
                    f"is in {event.path / 'log.txt'}, and the last checkpoint is good: mend the callback and go on "
                    f"with `offbeat resume {event.path}`, from Python with callbacks="
                ) from error
            if wanted and reason is None:
                reason = answer if isinstance(answer, str) else f"{name} asked for it"
        return reason


def gather(callbacks: Iterable[object] | None, stop_return: float | None) -> Callbacks | None:
    """The user's callbacks and those that settings stand for; None where there are none, so that a loop can ask."""
    if callbacks is not None and not isinstance(callbacks, Iterable):
        raise UsageError(f"callbacks is a {_called(callbacks)}, but it must be a list: use callbacks=[...]")
    own = [] if stop_return is None else [ReturnReached(stop_return)]
    everyone = [*(callbacks or ()), *own]
    return Callbacks(everyone) if everyone else None


def _check(callback: object, where: str) -> None:
    if isinstance(callback, type):
        raise UsageError(f"{where} is the class {_called(callback)}, not an object; use {_called(callback)}()")
    for name in (each for each in dir(callback) if each.startswith("on_") and each not in METHODS):
        if callable(getattr(callback, name)):
            close = difflib.get_close_matches(name, METHODS, n=1)
            raise UsageError(
                f"{where} ({_called(callback)}) has a method {name}, which no run calls: "
                + (f"did you mean {close[0]}?" if close else f"name it otherwise, or one of {', '.join(METHODS)}")
            )
    if not any(hasattr(callback, method) for method in METHODS):
        raise UsageError(
            f"{where} ({_called(callback)}) has none of the methods of a callback; give it at least one of "
            f"{', '.join(METHODS)}"
        )


def _called(callback: object) -> str:
    return callback.__qualname__ if isinstance(callback, type) else type(callback).__qualname__
