"""Calling a user's reward shaping, and checking what it returns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from offbeat.errors import OffbeatError
from offbeat.references import name_of
from offbeat.types import Array

Shaping = Callable[[Array, int, int], Array]
"""(reward (n,), rows made so far, total_steps) -> reward (n,)"""


def shape_reward(shaping: Shaping, reward: Array, valid: Array, rows: int, total_steps: int) -> Array:
    """The rewards (N,) as float64, shaped where `valid` (N,). rows: made so far, over all environments."""
    reward = np.array(reward, np.float64)
    reward[valid] = _shape(shaping, reward[valid], rows, total_steps)
    return reward


def _shape(shaping: Shaping, reward: Array, rows: int, total_steps: int) -> Array:
    name = name_of(shaping) or getattr(shaping, "__qualname__", repr(shaping))
    try:
        shaped = np.asarray(shaping(reward.copy(), rows, total_steps))
    except Exception as error:
        raise OffbeatError(f"reward_shaping {name} raised {type(error).__name__}: {error}") from error
    rule = f"it must return {len(reward)} finite numbers, shape {reward.shape}, that fit into float32"
    if shaped.shape != reward.shape or shaped.dtype.kind not in "biuf":
        raise OffbeatError(
            f"reward_shaping {name} returned shape {shaped.shape} of {shaped.dtype} at step {rows}; {rule}"
        )
    if not (np.abs(shaped) <= np.finfo(np.float32).max).all():
        raise OffbeatError(f"reward_shaping {name} made {shaped.tolist()} of {reward.tolist()} at step {rows}; {rule}")
    return shaped
