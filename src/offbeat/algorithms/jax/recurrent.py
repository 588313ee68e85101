"""The recurrent trunk: layers of RNN (tanh), GRU or LSTM units over sequences, with explicit state in and out.

S steps, B sequences, I inputs, H units, G gates. The formulas, the order of the gates and the weights of a layer,
U (I, G H), W (H, G H), b and d (G H), are those of `algorithms/torch/cells.py`. The state of a layer is h (B, H), and
for an LSTM h and c side by side (B, P = 2 H).

The inputs' products of all steps are one matrix product, and so is the gradient of W: left to JAX, it would be added up
step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.jax.networks import BYTES_PER_WEIGHT, Weights
from offbeat.memory import check_fits

Step = Callable[[Array, Array, Array], Array]
"""(x U + b (B, G H), h W + d (B, G H), the state before (B, P)) -> the state after (B, P)."""


def _rnn(given: Array, product: Array, state: Array) -> Array:
    return jnp.tanh(given + product)


def _gru(given: Array, product: Array, state: Array) -> Array:
    both = 2 * state.shape[1]
    reset, keep = jnp.split(jax.nn.sigmoid(given[:, :both] + product[:, :both]), 2, 1)
    new = jnp.tanh(given[:, both:] + reset * product[:, both:])
    return new + keep * (state - new)


def _lstm(given: Array, product: Array, state: Array) -> Array:
    enter, keep, new, leave = jnp.split(given + product, 4, 1)
    memory = jax.nn.sigmoid(keep) * state[:, state.shape[1] // 2 :] + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jnp.concatenate((jax.nn.sigmoid(leave) * jnp.tanh(memory), memory), 1)


class Cell(NamedTuple):
    """gates: G. memory: P = memory * H numbers are the state of a layer."""

    gates: int
    memory: int
    step: Step


CELLS = {"rnn": Cell(1, 1, _rnn), "gru": Cell(3, 1, _gru), "lstm": Cell(4, 2, _lstm)}
STEPS_PER_ITERATION = 2
"""Of the compiled loop over steps: 9% faster updates with 256 GRU units than with 1, and not faster with more."""
PARTS = ("input_weight", "state_weight", "input_bias", "state_bias")


@dataclass(frozen=True)
class Recurrent:
    """`layers` layers of `size` units of a kind (rnn, gru, lstm), each on top of the one before.

    The state is h of layer 0 (for LSTM h, then c), then that of layer 1, and so on.
    """

    kind: str
    inputs: int
    size: int
    layers: int

    def __post_init__(self) -> None:
        count = sum(math.prod(shape) for layer in range(self.layers) for shape in self._shapes(layer)[:2])
        check_fits(
            f"{self.layers} {self.kind} layers of {self.size} units ({count:,} weights)", count * BYTES_PER_WEIGHT
        )

    @property
    def cell(self) -> Cell:
        return CELLS[self.kind]

    @property
    def state_size(self) -> int:
        """C."""
        return self.layers * self.cell.memory * self.size

    def _shapes(self, layer: int) -> tuple[tuple[int, ...], ...]:
        width = self.cell.gates * self.size
        return (self.size if layer else self.inputs, width), (self.size, width), (width,), (width,)

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Uniform in +-1/sqrt(I) for the inputs and +-1/sqrt(H) for the rest."""
        weights: dict[str, np.ndarray] = {}
        for layer in range(self.layers):
            for part, shape in zip(PARTS, self._shapes(layer), strict=True):
                bound = 1.0 / math.sqrt(shape[0] if part == "input_weight" else self.size)
                weights[f"{layer}/{part}"] = rng.uniform(-bound, bound, shape)
        return weights

    def initial_state(self, rows: int, dtype: Any) -> Array:
        """Zeros (rows, C)."""
        return jnp.zeros((rows, self.state_size), dtype)

    def __call__(self, weights: Weights, x: Array, state: Array, broken: Array, start: Array) -> tuple[Array, Array]:
        """x (S, B, I), state (B, C) -> features (S, B, H), and the states after each step (S, B, C).

        broken (S, B) bool: steps before which a sequence's state is replaced by that of `start` (S, B, C). `state` and
        `start` get no gradient.
        """
        found, features = [], x
        for layer, (into, again, bias, of_state) in enumerate(self._layers(weights)):
            part, given = self._part(layer), (features.reshape(-1, features.shape[2]) @ into + bias)
            given = given.reshape(*x.shape[:2], -1)
            states = _run(self.cell.step, given, again, of_state, state[:, part], broken[..., None], start[..., part])
            features = states[..., : self.size]
            found.append(states)
        return features, found[0] if self.layers == 1 else jnp.concatenate(found, 2)

    def step(self, weights: Weights, x: Array, state: Array) -> tuple[Array, Array]:
        """One step of many rows at once: x (R, I), state (R, C) -> features (R, H), states (R, C)."""
        found, features = [], x
        for layer, (into, again, bias, of_state) in enumerate(self._layers(weights)):
            before = state[:, self._part(layer)]
            after = self.cell.step(features @ into + bias, before[:, : self.size] @ again + of_state, before)
            features = after[:, : self.size]
            found.append(after)
        return features, jnp.concatenate(found, 1)

    def _layers(self, weights: Weights) -> list[tuple[Array, ...]]:
        """U, W, b and d of each layer."""
        return [tuple(weights[f"{layer}/{part}"] for part in PARTS) for layer in range(self.layers)]

    def _part(self, layer: int) -> slice:
        """Where the state of a layer stands in the whole state."""
        width = self.cell.memory * self.size
        return slice(layer * width, (layer + 1) * width)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(step: Step, given: Array, weight: Array, bias: Array, state: Array, broken: Array, start: Array) -> Array:
    """The states after each step (S, B, P) of one layer.

    given (S, B, G H): x U + b. weight, bias: W, d. state (B, P): the first one. broken (S, B, 1), start (S, B, P).
    """
    return _forward(step, given, weight, bias, state, broken, start)[0]


def _forward(
    step: Step, given: Array, weight: Array, bias: Array, state: Array, broken: Array, start: Array
) -> tuple[Array, tuple[Array, ...]]:
    def body(state: Array, row: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array, Array]]:
        given, broken, start = row
        before = jnp.where(broken, start, state)
        product = before[:, : len(weight)] @ weight + bias
        after = step(given, product, before)
        return after, (after, before, product)

    _, (states, before, product) = jax.lax.scan(body, state, (given, broken, start), unroll=STEPS_PER_ITERATION)
    return states, (given, weight, broken, before, product)


def _backward(step: Step, saved: tuple[Array, ...], gradient: Array) -> tuple[Array | None, ...]:
    given, weight, broken, before, product = saved
    size = len(weight)

    def body(later: Array, row: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        given, broken, before, product, gradient = row
        _, pull = jax.vjp(step, given, product, before)
        at_given, at_product, at_before = pull(later + gradient)
        through = at_before[:, :size] + at_product @ weight.T
        at_before = jnp.concatenate((through, at_before[:, size:]), 1)
        return jnp.where(broken, 0.0, at_before), (at_given, at_product)

    rows = given, broken, before, product, gradient
    _, (at_given, at_product) = jax.lax.scan(
        body, jnp.zeros_like(gradient[0]), rows, reverse=True, unroll=STEPS_PER_ITERATION
    )
    flat = at_product.reshape(-1, at_product.shape[2])
    at_weight = before[..., :size].reshape(-1, size).T @ flat
    return at_given, at_weight, flat.sum(0), None, None, None


_run.defvjp(_forward, _backward)
