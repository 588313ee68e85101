"""Optimisers on flat vectors, and the one seam through which every gradient reaches a parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs import groups


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Optimiser:
    """What one flat vector's optimiser remembers, by the names of the torch optimisers, and how it steps."""

    memory: dict[str, Array]
    kind: str = field(metadata={"static": True})
    epsilon: float = field(default=1e-8, metadata={"static": True})
    betas: tuple[float, float] = field(default=(0.9, 0.999), metadata={"static": True})
    decay: float = field(default=0.0, metadata={"static": True})

    def step(self, flat: Array, gradient: Array, rate: Array) -> tuple[Array, Optimiser]:
        """The flat vector after one step at `rate`, and the optimiser after it."""
        flat, memory = {"adam": self._adam, "rmsprop": self._rmsprop, "sgd": self._sgd}[self.kind](flat, gradient, rate)
        return flat, Optimiser(memory, self.kind, self.epsilon, self.betas, self.decay)

    def _adam(self, flat: Array, gradient: Array, rate: Array) -> tuple[Array, dict[str, Array]]:
        """decay: makes it AdamW, whose parameters shrink by this times the rate in each step."""
        steps, (first, second) = self.memory["steps"] + 1, self.betas
        mean = first * self.memory["mean"] + (1.0 - first) * gradient
        square = second * self.memory["square"] + (1.0 - second) * gradient * gradient
        count = steps.astype(flat.dtype)
        size, root = rate / _correction(first, count), jnp.sqrt(_correction(second, count))
        if self.decay:
            flat = flat * (1.0 - rate * self.decay)
        flat = flat - size * (mean / (jnp.sqrt(square) / root + self.epsilon))
        return flat, {"mean": mean, "square": square, "steps": steps}

    def _rmsprop(self, flat: Array, gradient: Array, rate: Array) -> tuple[Array, dict[str, Array]]:
        square = 0.99 * self.memory["square"] + 0.01 * gradient * gradient
        return flat - rate * (gradient / (jnp.sqrt(square) + 1e-8)), {"square": square}

    def _sgd(self, flat: Array, gradient: Array, rate: Array) -> tuple[Array, dict[str, Array]]:
        return flat - rate * gradient, {}


def _correction(beta: float, count: Array) -> Array | float:
    """1 - beta^count, exact also where beta^count is near 1."""
    return -jnp.expm1(count * math.log(beta)) if beta else 1.0


def make_optimiser(settings: groups.Optimisation, flat: Any, decay: bool = True) -> Optimiser:
    """The optimiser that the settings name, for one flat vector. decay: whether adamw's weight decay applies to it."""
    empty = np.zeros_like(flat)
    if settings.optimiser == "sgd":
        return Optimiser({}, "sgd")
    if settings.optimiser == "rmsprop":
        return Optimiser({"square": empty}, "rmsprop")
    shrink = settings.weight_decay if settings.optimiser == "adamw" and decay else 0.0
    memory: dict[str, Any] = {"mean": empty, "square": empty.copy(), "steps": np.zeros((), np.float32)}
    return Optimiser(memory, "adam", settings.adam_epsilon, settings.adam_betas, shrink)


def apply(
    flat: Array, gradient: Array, optimiser: Optimiser, rate: Array, max_norm: float | None = None
) -> tuple[Array, Optimiser]:
    """One optimiser step on a flat vector: clips the gradient's norm where asked, then steps at `rate`."""
    return apply_jointly([(flat, gradient, optimiser)], rate, max_norm)[0]


def apply_jointly(
    parts: Sequence[tuple[Array, Array, Optimiser]], rate: Array, max_norm: float | None = None
) -> list[tuple[Array, Optimiser]]:
    """As `apply`, on several vectors whose gradients are clipped by the norm of all together."""
    if max_norm is not None:
        norm = jnp.sqrt(sum((gradient * gradient).sum() for _, gradient, _ in parts))
        factor = jnp.minimum(max_norm / (norm + 1e-6), 1.0)
        parts = [(flat, gradient * factor, optimiser) for flat, gradient, optimiser in parts]
    return [optimiser.step(flat, gradient, rate) for flat, gradient, optimiser in parts]
