"""What a loop of one's own says that it has observed, as arrays of the right shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat import masks
from offbeat.errors import UsageError
from offbeat.types import Array, EnvSpec


def flags(name: str, value: Any) -> Array:
    """True or False per row, (B,); numbers are taken where they are 0 or 1."""
    found = np.atleast_1d(np.asarray(value))
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "biuf" or not np.isin(found, (0, 1)).all():
        raise UsageError(f"observe: {name}={value!r}; it must be True or False, one per row")
    return found.astype(bool)


def shaped(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size != np.prod(shape):
        raise UsageError(f"observe: {name} is {value!r}; {shape[0]} rows take numbers of shape {shape}")
    return array.reshape(shape)


def check(columns: Mapping[str, Array], spec: EnvSpec) -> None:
    """Refuses rows of numbers that are not finite, and of actions that cannot have been taken."""
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
            "observe: an action is outside the "
            f"environment's bounds, {spec.action_low} to {spec.action_high}; pass what it was given"
        )
    if "mask" in columns and not masks.permits(columns["mask"], action, spec.counts):
        raise UsageError(
            f"observe: the mask forbids an action of {action.tolist()}; pass the mask of obs, and the action that was "
            "taken under it"
        )
