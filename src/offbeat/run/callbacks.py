"""Callbacks: user code that a run calls at four points, and that can end the run.

A callback is any object with at least one of the methods of `Callback`. Any other public method named `on_...` is an
error, because it is probably misspelt. A method that returns a true value ends the run as if it had reached its total;
if the value is a string, summary.json and the console show it as the reason. With `event.run`, a callback can log a
number, request a checkpoint and change a learning rate. Checkpoints do not store the state of callbacks.
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
    from offbeat.run.evaluation import Evaluation
    from offbeat.types import Chunk


class RunHandle:
    """`event.run`: lets a callback log numbers, request a checkpoint and change learning rates."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self.checkpoint_requested = agent, False

    def log(self, name: str, value: Any) -> None:
        """Logs a number in the next line of metrics.jsonl and to every logger, as `Agent.log` does."""
        self._agent.log(name, value)

    def save_checkpoint(self) -> None:
        """Requests a checkpoint, which the run writes after the due updates and before the next environment step."""
        self.checkpoint_requested = True

    def set_learning_rate(self, rate: float, group: str | None = None) -> None:
        """Changes the learning rate, as `Agent.set_learning_rate` does."""
        self._agent.set_learning_rate(rate, group)


@dataclass(frozen=True)
class Event:
    """What every event has. path: the run's directory. step, updates: environment steps and updates so far.

    run: logs a number, requests a checkpoint, or changes a learning rate.
    """

    path: Path
    step: int
    updates: int
    run: RunHandle


@dataclass(frozen=True)
class ChunkEvent(Event):
    """New experience is in replay; with collectors=0, no update has used it yet.

    Copy the chunk's arrays if you keep them: with collectors >= 1 they are views of replay, which is overwritten later.
    `chunk.finished` are the episodes that ended in the chunk, each with its `success` and final `info`. With
    collectors >= 1, `info` has only the entries that `offbeat.envs.infos.portable` keeps.
    """

    method: ClassVar[str] = "on_chunk"
    chunk: Chunk


@dataclass(frozen=True)
class UpdateEvent(Event):
    """`count` updates have just been made: at most 16 at a time, or all updates on one rollout.

    The event has no metrics, because reading them would wait for the accelerator. They are in metrics.jsonl.
    """

    method: ClassVar[str] = "on_update"
    count: int
    agent: Agent


@dataclass(frozen=True)
class EvaluationEvent(Event):
    """An evaluation is finished and logged. If it was the best so far, the best checkpoint is already written."""

    method: ClassVar[str] = "on_evaluation"
    evaluation: Evaluation


@dataclass(frozen=True)
class CheckpointEvent(Event):
    """A checkpoint is on disk and verified, and `policy/` holds the policy of the same step.

    checkpoint: its directory. A run writes the first checkpoint before the first step and the last one after the final
    evaluation.
    """

    method: ClassVar[str] = "on_checkpoint"
    checkpoint: Path


class Callback(Protocol):
    """The methods that a callback can have. A callback need not inherit from this class."""

    def on_chunk(self, event: ChunkEvent) -> Any:
        """Called after each poll of the collector."""

    def on_update(self, event: UpdateEvent) -> Any:
        """Called after each group of updates."""

    def on_evaluation(self, event: EvaluationEvent) -> Any:
        """Called after each evaluation, including the final one."""

    def on_checkpoint(self, event: CheckpointEvent) -> Any:
        """Called after each checkpoint, including the final one."""


METHODS = tuple(event.method for event in (ChunkEvent, UpdateEvent, EvaluationEvent, CheckpointEvent))


@dataclass(frozen=True)
class ReturnReached:
    """Ends a run when an evaluation reaches a mean return. The setting `stop_return` adds this callback."""

    threshold: float

    def on_evaluation(self, event: EvaluationEvent) -> str | None:
        reached = event.evaluation.mean_return
        if reached >= self.threshold:
            return f"an evaluation's mean return of {reached:.6g} reached stop_return={self.threshold:g}"
        return None


class Callbacks:
    """A list of callbacks, called in order. Raises UsageError for an object that is not a callback."""

    def __init__(self, callbacks: Iterable[object]) -> None:
        self._methods: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {method: [] for method in METHODS}
        for position, callback in enumerate(callbacks):
            _check(callback, f"callbacks[{position}]")
            for method in METHODS:
                if hasattr(callback, method):
                    self._methods[method].append((f"{_class_name(callback)}.{method}", getattr(callback, method)))

    def handles(self, method: str) -> bool:
        """Whether any callback has this method."""
        return bool(self._methods[method])

    def call(self, event: ChunkEvent | UpdateEvent | EvaluationEvent | CheckpointEvent) -> str | None:
        """Calls every callback that handles the event; returns the first reason to end the run, or None."""
        reason = None
        for name, method in self._methods[event.method]:
            try:
                result = method(event)
                stops = bool(result)
            except Exception as error:
                raise CallbackFault(
                    f"the callback {name} raised {type(error).__name__} at step {event.step}: {error}; the traceback "
                    f"is in {event.path / 'log.txt'}. The last checkpoint is intact: fix the callback and resume with "
                    f"`offbeat resume {event.path}`, or from Python with callbacks="
                ) from error
            if stops and reason is None:
                reason = result if isinstance(result, str) else f"{name} requested it"
        return reason


def combine(callbacks: Iterable[object] | None, stop_return: float | None) -> Callbacks | None:
    """The user's callbacks and the one of `stop_return`; None if there are none."""
    if callbacks is not None and not isinstance(callbacks, Iterable):
        raise UsageError(f"callbacks is a {_class_name(callbacks)}, but it must be a list: use callbacks=[...]")
    from_settings = [] if stop_return is None else [ReturnReached(stop_return)]
    combined = [*(callbacks or ()), *from_settings]
    return Callbacks(combined) if combined else None


def _check(callback: object, where: str) -> None:
    if isinstance(callback, type):
        raise UsageError(f"{where} is the class {_class_name(callback)}, not an object; use {_class_name(callback)}()")
    for name in (each for each in dir(callback) if each.startswith("on_") and each not in METHODS):
        if callable(getattr(callback, name)):
            close = difflib.get_close_matches(name, METHODS, n=1)
            raise UsageError(
                f"{where} ({_class_name(callback)}) has a method {name}, which no run calls: "
                + (f"did you mean {close[0]}?" if close else f"rename it; the methods are {', '.join(METHODS)}")
            )
    if not any(hasattr(callback, method) for method in METHODS):
        raise UsageError(
            f"{where} ({_class_name(callback)}) has no callback method; give it at least one of {', '.join(METHODS)}"
        )


def _class_name(callback: object) -> str:
    return callback.__qualname__ if isinstance(callback, type) else type(callback).__qualname__
