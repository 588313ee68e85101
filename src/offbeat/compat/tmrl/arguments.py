"""Checks of what the user passes; each error names the argument, the rule and the remedy."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from offbeat.errors import UsageError

_COUNTS = ("rounds", "steps", "update_model_interval", "update_buffer_interval")


def check_arguments(training: Any) -> None:
    """The numbers and callables of a `TrainingOffline`."""
    for name in _COUNTS:
        _check_whole(name, getattr(training, name), least=1)
    _check_whole("start_training", training.start_training, least=0)
    if training.epochs != math.inf:
        _check_whole("epochs", training.epochs, least=0)
    ratio, sleep = training.max_training_steps_per_env_step, training.sleep_between_buffer_retrieval_attempts
    if not _is_number(ratio) or not ratio > 0:
        raise UsageError(f"max_training_steps_per_env_step={ratio!r} is out of range: it must be a number above 0")
    if not _is_number(sleep) or not 0 <= sleep < math.inf:
        raise UsageError(
            f"sleep_between_buffer_retrieval_attempts={sleep!r} is out of range: it must be a number of seconds, at "
            "least 0"
        )
    if training.agent_scheduler is not None and not callable(training.agent_scheduler):
        raise UsageError(
            f"agent_scheduler={training.agent_scheduler!r:.80} cannot be called; pass a function of the agent and the "
            "epoch, or None"
        )
    if training.env_cls is None:
        raise UsageError(
            "env_cls is missing: pass the class of an environment, or the pair (observation_space, action_space)"
        )


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={value!r} is out of range: it must be a whole number, at least {least}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_class(name: str, given: Any, methods: Sequence[str]) -> None:
    """Before anything is made: that `given` is None or callable, and that a class has these methods."""
    if given is None:
        return
    if not callable(given):
        raise UsageError(f"{name}={given!r:.80} is not a class; pass a class, a partial of one, or None for ours")
    made = given
    while isinstance(made, functools.partial):
        made = made.func
    if isinstance(made, type):
        _check(name, made.__name__, made, methods)


def check_methods(name: str, made: Any, methods: Sequence[str]) -> None:
    """That the object which `name` made has these methods."""
    _check(name, type(made).__name__, made, methods)


def _check(name: str, kind: str, found: Any, methods: Sequence[str]) -> None:
    if missing := [method for method in methods if not callable(getattr(found, method, None))]:
        raise UsageError(f"{name}: {kind} has no {', '.join(missing)}; it needs {', '.join(methods)}")


def check_interface(interface: Any) -> None:
    _check("interface", type(interface).__name__, interface, ("retrieve_buffer", "broadcast_model"))
