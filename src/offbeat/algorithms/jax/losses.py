"""Parts of losses that several algorithms have."""

from __future__ import annotations

from jax import Array
from jax import numpy as jnp


def weighted(values: Array, weight: Array | None) -> Array:
    """Values (..., B) times the rows' importance weights (B,), where there are some."""
    return values if weight is None else values * weight


def error_loss(error: Array, kind: str) -> Array:
    """The loss of each error: the square (`mse`), or Huber's."""
    if kind == "mse":
        return error * error
    slope = jnp.clip(error, -1.0, 1.0)
    return slope * (error - 0.5 * slope)


def over_critics(q: Array, of: str) -> Array:
    """One value (B, ...) of the critics' (E, B, ...): their minimum (`min`) or their `mean`."""
    return q.mean(0) if of == "mean" else q.min(0)


def values_of_taken(q: Array, action: Array) -> Array:
    """The values (..., B) of the actions (B, 1) that were taken, of those (..., B, choices) of all.

    Selected by comparison: its gradient needs no scatter, which is slow on a CPU.
    """
    taken = action.astype(jnp.int32) == jnp.arange(q.shape[-1], dtype=jnp.int32)
    return jnp.where(taken, q, 0.0).sum(-1)
