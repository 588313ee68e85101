"""What the actors' outputs mean: actions and their log-probabilities."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array


def squash(out: Array, noise: Array, bounds: tuple[float, float]) -> tuple[Array, Array]:
    """Actions (B, A) in [-1, 1] and their log-probability (B,).

    out (B, 2A): mean and log standard deviation, which is clamped to `bounds`. noise (B, A): standard normal.
    With u = mean + std * noise and a = tanh(u), log pi(a) = log N(u) - sum log(1 - a^2); the last term is written
    2 (log 2 - u - softplus(-2u)), which is exact for large |u|.
    """
    mean, raw = jnp.split(out, 2, -1)
    log_std = jnp.clip(raw, *bounds)
    u = mean + jnp.exp(log_std) * noise
    terms = log_std + 0.5 * noise * noise - 2.0 * (u + jax.nn.softplus(-2.0 * u))
    constant = noise.shape[-1] * (0.5 * math.log(2 * math.pi) + 2.0 * math.log(2.0))
    return jnp.tanh(u), -constant - terms.sum(-1)
