"""Steps on losses, so that an algorithm can be written as losses only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from offbeat.algorithms.jax.networks import Network, differentiate
from offbeat.algorithms.jax.optimise import Optimiser, apply
from offbeat.errors import OffbeatError


def minimise(
    loss: Callable[[Any], Any],
    what: Network | Array,
    optimiser: Optimiser,
    rate: Array,
    max_norm: float | None = None,
    key: Array | None = None,
) -> tuple[Any, Optimiser, Array, Any]:
    """One optimiser step on a loss: the network after it, the optimiser after it, the loss, and what else it returned.

    loss: of the network that learns, or of an array; returns a single number, or (a single number, anything else).
    max_norm: as for `apply`. key: turns dropout on.
    """

    def pair(each: Any) -> tuple[Array, Any]:
        found = loss(each)
        value, besides = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        if jnp.size(value) != 1:
            raise OffbeatError(
                f"the loss has the shape {jnp.shape(value)}, but must be one number: use its mean or sum"
            )
        return jnp.reshape(value, ()), besides

    if isinstance(what, Network):
        value, besides, gradient = differentiate(pair, what, key)
        flat, optimiser = apply(what.flat, gradient, optimiser, rate, max_norm)
        return what.replace(flat), optimiser, value, besides
    (value, besides), gradient = jax.value_and_grad(pair, has_aux=True)(what)
    flat, optimiser = apply(what, gradient, optimiser, rate, max_norm)
    return flat, optimiser, value, besides
