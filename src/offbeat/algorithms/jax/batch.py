"""A batch of transitions as JAX arrays, and what an update does only sometimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

MOST_UPDATES = 2**31 - 1
"""Updates of a run, which JAX counts in 32 bits."""

State = TypeVar("State")
Metrics = dict[str, Any]
"""Values of one update by name; a pair (value, whether there is one) for what an update does only sometimes."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """B transitions, normalised and scaled.

    obs, next_obs (B, O); action (B, A); reward, discount (B,); state, next_state (B, S). mask, next_mask (B, K) bool,
    K = 0 for none. weight (B,): importance weight of each row in the critic's loss, or None. extras: other columns.
    key: for the networks' own randomness (dropout); another one in each update.
    """

    obs: Array
    action: Array
    reward: Array
    discount: Array
    next_obs: Array
    state: Array
    next_state: Array
    mask: Array
    next_mask: Array
    weight: Array | None
    extras: Mapping[str, Array]
    key: Array

    def __len__(self) -> int:
        return int(self.reward.shape[0])


def every(
    period: int, updates: Array, step: Callable[[State], tuple[State, Metrics]], state: State
) -> tuple[State, Metrics]:
    """`step(state)`, but only in every `period`-th update; otherwise the state as it is, and metrics without a value.

    updates: made so far, this one included.
    """
    if period == 1:
        return step(state)
    # A longer period never ends: updates are counted in 32 bits.
    due = updates % period == 0 if period <= MOST_UPDATES else jnp.zeros((), bool)

    def not_now(state: State) -> tuple[State, Metrics]:
        _, metrics = jax.eval_shape(step, state)
        return state, {name: jnp.zeros(each.shape, each.dtype) for name, each in metrics.items()}

    state, metrics = jax.lax.cond(due, step, not_now, state)
    return state, {name: (value, due) for name, value in metrics.items()}


def mask_forbidden(values: Array, mask: Array) -> Array:
    """Values or logits (..., K) of actions, -inf where the mask (B, K) bool forbids one; K = 0 forbids none."""
    return values if mask.shape[-1] == 0 else jnp.where(mask, values, -jnp.inf)
