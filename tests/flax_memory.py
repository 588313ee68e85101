"""A recurrent network of one's own for JAX: a GRU cell of flax.linen."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp


class Memory(nn.Module):
    """One step: x (batch, O), state (batch, C), mask (batch, 1) -> features (batch, H), the next state (batch, C)."""

    size: int = 6

    def initial_state(self, batch: int) -> Any:
        return jnp.full((batch, self.size), 0.5)

    @nn.compact
    def __call__(self, x: Any, state: Any, mask: Any) -> Any:
        state, features = nn.GRUCell(self.size)(mask * state + 0.5 * (1.0 - mask), x)
        return features, state


def memory(spec: Any) -> Memory:
    return Memory()
