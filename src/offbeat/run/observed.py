"""What a loop of one's own says that it has observed, as arrays of the right shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.errors import UsageError
from offbeat.types import Array


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
