"""Learning rates by optax-style schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from offbeat.errors import UsageError
from offbeat.learn.learner import Learner


class Schedule:
    """One learning rate: of a schedule that a function of optax made, or of skrl's `KLAdaptiveLR`.

    A schedule maps the number of gradient steps to the rate; one that takes `lr` maps the present rate to the next.
    """

    def __init__(self, make: Any, options: dict[str, Any]) -> None:
        if not callable(make):
            raise UsageError(
                f"learning_rate_scheduler={make!r} is not a function that makes a schedule; use one of optax"
            )
        name = getattr(make, "__name__", make)
        try:
            self._schedule: Callable[..., Any] = make(**options)
        except TypeError as error:
            raise UsageError(f"{name} does not take learning_rate_scheduler_kwargs={options!r}: {error}") from error
        if not callable(self._schedule):
            raise UsageError(
                f"{name} returned a {type(self._schedule).__name__}; a scheduler must return a function of the step"
            )
        self._takes_rate = "lr" in inspect.signature(self._schedule).parameters

    def rate(self, updates: int, rate: float) -> float:
        """The rate of the update after `updates` others. rate: the present one."""
        found = self._schedule(updates, lr=rate) if self._takes_rate else self._schedule(updates)
        return float(found)


class Rates:
    """The learning rates of policy, critics and entropy coefficient for the next update."""

    def __init__(self, first: Sequence[float], kinds: Sequence[Any], options: Sequence[dict[str, Any]]) -> None:
        self.schedules = [
            None if kind is None else Schedule(kind, own) for kind, own in zip(kinds, options, strict=True)
        ]
        self.now = [float(rate) for rate in first]
        self.learner: Learner | None = None
        self.follow(0)

    def follow(self, updates: int) -> None:
        """Sets the rates for the update after `updates` others."""
        for index, schedule in enumerate(self.schedules):
            if schedule is not None:
                self.now[index] = schedule.rate(updates, self.now[index])

    @property
    def state_dict(self) -> Any:
        """Rates and the number of updates, for files."""
        updates = 0 if self.learner is None else self.learner.updates
        params = {"rates": np.array(self.now), "updates": np.array(updates)}
        return SimpleNamespace(params=params, replace=lambda params: params)

    @state_dict.setter
    def state_dict(self, params: Any) -> None:
        self.now = [float(rate) for rate in params["rates"]]
        if self.learner is not None:
            self.learner.updates = int(params["updates"])
