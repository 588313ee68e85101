"""Optax's schedules as plain functions of the number of updates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat.errors import UsageError
from offbeat.learn.schedules import is_optax

BLOCK = 1_024
"""A schedule is computed for this many updates at a time: one call of JAX costs more than all of them."""


def schedule_factor(kind: Any, options: Mapping[str, Any]) -> Callable[[int], float]:
    """What a factory of optax, or a schedule that it made, gives after a number of updates."""
    name = getattr(kind, "__name__", repr(kind))
    if not is_optax(kind) or isinstance(kind, type):
        raise UsageError(
            f"{name} is a class, and backend=jax has no scheduler classes: use a function of the progress, a schedule "
            "of optax (optax:cosine_decay_schedule), or backend=torch for a class of torch.optim.lr_scheduler"
        )
    if "<locals>" in kind.__qualname__:
        if options:
            raise UsageError(
                f"schedule_kwargs={dict(options)} has no effect, because this schedule of optax is made already; pass "
                "its factory, or leave schedule_kwargs out"
            )
        return _Factor(name, kind)
    if "init_value" in inspect.signature(kind).parameters:
        options = {"init_value": 1.0, **options}
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    try:
        return _Factor(f"{name}({given})", kind(**options))
    except Exception as error:
        raise UsageError(f"{name}({given}) raised {type(error).__name__}: {error}; correct schedule_kwargs") from error


class _Factor:
    """The values of a schedule, by blocks of updates."""

    def __init__(self, name: str, schedule: Callable[[Any], Any]) -> None:
        self._name, self._values = name, jax.jit(jax.vmap(schedule))
        self._start, self._block = -1, np.zeros(0)

    def __call__(self, updates: int) -> float:
        start = updates - updates % BLOCK
        if start != self._start:
            try:
                with jax.enable_x64(True):
                    self._block = np.asarray(self._values(jnp.arange(start, start + BLOCK)))
            except Exception as error:
                raise UsageError(
                    f"{self._name} raised {type(error).__name__}: {error}; a schedule of optax is called with the "
                    "number of updates and returns a factor"
                ) from error
            self._start = start
        return float(self._block[updates - start])
