"""Converts and checks the arguments of `Agent.observe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat import masks
from offbeat.errors import UsageError
from offbeat.types import Array, EnvSpec


def flags(name: str, value: Any) -> Array:
    """Converts to an array (B,) of bool; accepts the numbers 0 and 1."""
    array = np.atleast_1d(np.asarray(value))
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise UsageError(f"observe: {name}={value!r}, but it must be True or False, one per row")
    return array.astype(bool)


def shaped(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Converts to a numeric array of this shape."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size != np.prod(shape):
        raise UsageError(f"observe: {name} is {value!r}, but {shape[0]} rows need numbers of shape {shape}")
    return array.reshape(shape)


def check_rows(columns: Mapping[str, Array], spec: EnvSpec) -> None:
    """Raises UsageError if a number is not finite, or an action is out of bounds or forbidden by the mask."""
    for name in ("action", "reward", "state", "next_state"):
        if name in columns and not np.isfinite(columns[name]).all():
            raise UsageError(f"observe: {name} holds {columns[name].tolist()}, which is not finite")
    action = columns["action"]
    if spec.counts:
        within = (action >= 0) & (action < spec.counts) & (action == np.floor(action))
    else:
        within = np.abs(action) <= 1.0 + 1e-5
    if not within.all():
        raise UsageError(
            f"observe: an action is outside the environment's bounds, {spec.action_low} to {spec.action_high}; pass "
            "the action that the environment received"
        )
    if "mask" in columns and not masks.permits(columns["mask"], action, spec.counts):
        raise UsageError(
            f"observe: the mask forbids an action of {action.tolist()}; pass the mask that belongs to obs, and the "
            "action that was taken with it"
        )


def logged_number(name: Any, value: Any) -> float:
    """A number of the user's own, for the logs; UsageError if it or its name cannot be one."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"log: name={name!r} must be text that is not empty")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"log: {name}={value!r} is not a number: {error}; pass one number") from error
