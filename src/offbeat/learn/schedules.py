"""Factors on a setting over the course of a run: built-in schedules, a user's callable, or a backend's scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from offbeat.errors import UsageError
from offbeat.learn.backend import Backend
from offbeat.references import resolve

Schedule = Callable[[float, int], float]
"""(progress of the run in [0, 1], updates so far) -> factor"""

BUILT_IN: dict[str, Schedule] = {
    "constant": lambda progress, updates: 1.0,
    "linear": lambda progress, updates: 1.0 - progress,
    "cosine": lambda progress, updates: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def make_schedule(name: str, value: Any, options: Mapping[str, Any], backend: Backend) -> Schedule:
    """The schedule that the setting `name` asks for. options: keyword arguments for a user's own schedule."""
    if isinstance(value, str) and value in BUILT_IN:
        return BUILT_IN[value]
    own = resolve(value, name)
    if isinstance(own, type) or is_optax(own):
        by_updates = backend.scheduler(own, options)
        return _checked(name, lambda progress, updates: by_updates(updates))
    return _checked(name, lambda progress, updates: own(progress, **options))


def is_optax(own: Any) -> bool:
    """Whether a callable is of optax: a factory of schedules, or a schedule, which is a function of the updates."""
    return str(getattr(own, "__module__", "")).split(".")[0] == "optax"


def _checked(name: str, own: Schedule) -> Schedule:
    """A user's schedule whose mistakes are reported as such, the first before the run starts."""

    def factor(progress: float, updates: int) -> float:
        try:
            value = float(own(progress, updates))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"{name}: your schedule raised {type(error).__name__}: {error}; it is called with the progress in "
                "[0, 1] and schedule_kwargs, and returns a factor"
            ) from error
        if not 0.0 <= value < math.inf:
            raise UsageError(f"{name}: your schedule returned {value!r} at progress {progress:g}; return a factor >= 0")
        return value

    factor(0.0, 0)
    return factor
