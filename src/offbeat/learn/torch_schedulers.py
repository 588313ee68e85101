"""Torch's learning-rate schedulers as plain functions of the number of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from offbeat.errors import UsageError
from offbeat.learn.schedules import is_optax


def scheduler_factor(kind: Any, options: Mapping[str, Any]) -> Callable[[int], float]:
    """The rate that a scheduler class gives after a number of updates, where it begins with 1."""
    if not (isinstance(kind, type) and issubclass(kind, LRScheduler)):
        name = getattr(kind, "__name__", repr(kind))
        if is_optax(kind):
            raise UsageError(
                f"{name} is a schedule of optax, which backend=torch cannot use: use a class of "
                "torch.optim.lr_scheduler, a function of the progress, or backend=jax"
            )
        raise UsageError(f"{name} is not a class of torch.optim.lr_scheduler; use one, or a function of the progress")
    if issubclass(kind, ReduceLROnPlateau):
        raise UsageError(
            f"{kind.__name__} needs a metric after each epoch, which a schedule does not have; use another"
        )
    return _Factor(kind, options)


class _Factor:
    """Steps a scheduler over an optimiser of rate 1 as far as it is asked, and begins again for an earlier number."""

    def __init__(self, kind: type[LRScheduler], options: Mapping[str, Any]) -> None:
        self._kind, self._options = kind, dict(options)
        self._begin()

    def _begin(self) -> None:
        with torch.inference_mode(False):
            self._optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            try:
                self._scheduler = self._kind(self._optimiser, **self._options)
            except Exception as error:
                raise self._error(error, "with these options") from error
        self._optimiser.step()  # else torch warns of a scheduler that steps before its optimiser
        self._updates = 0

    def __call__(self, updates: int) -> float:
        if updates < self._updates:
            self._begin()
        while self._updates < updates:
            try:
                self._scheduler.step()
            except Exception as error:
                raise self._error(error, f"after {self._updates} updates") from error
            self._updates += 1
        return float(self._optimiser.param_groups[0]["lr"])

    def _error(self, error: Exception, when: str) -> UsageError:
        given = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return UsageError(
            f"{self._kind.__name__}({given}) raised {type(error).__name__} {when}: {error}. A schedule needs a "
            "class of torch.optim.lr_scheduler that takes an optimiser and these options, and a step for each update"
        )
