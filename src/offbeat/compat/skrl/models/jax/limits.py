"""Limits of actions that JAX clips to."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from offbeat.types import Array


def limits_of(space: Any) -> tuple[Array | None, Array | None]:
    """Low and high (A,) of a Box space, None where there are none; NumPy's, so that a compiled function holds them."""
    if not isinstance(space, gymnasium.spaces.Box):
        return None, None
    low, high = (np.asarray(each, np.float32).reshape(-1) for each in (space.low, space.high))
    return None if np.isinf(low).all() else low, None if np.isinf(high).all() else high
