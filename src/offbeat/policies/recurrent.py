"""Policies with a recurrent trunk (RNN, GRU, LSTM), in NumPy or torch: explicit state in, explicit state out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np

from offbeat.policies.mlp import BACKENDS, MLPPolicy
from offbeat.types import Array, Weights


class Trunk(Protocol):
    """From observations (N, O) and states (N, C) to features (N, H) and the next states, as a backend's arrays."""

    def load(self, weights: Weights) -> None: ...

    def initial_state(self, rows: int) -> Array: ...

    def step(self, x: Any, state: Any) -> tuple[Any, Any]: ...


class RecurrentPolicy:
    """A recurrent trunk, then an `MLPPolicy` over its features; description["recurrent"] says which trunk.

    The carry (N, C) is the trunk's state: h of layer 0 (for LSTM h, then c), then that of layer 1, and so on. extras
    have it as `carry`, as it was before the step, so that replay can store what the action came from.
    trunk: a user's own; else it is built from the description.
    """

    def __init__(self, description: Mapping[str, Any], backend: str = "numpy", trunk: Trunk | None = None) -> None:
        above = {name: value for name, value in description.items() if name != "recurrent"}
        self._above, self._backend = MLPPolicy(above, backend), BACKENDS[backend]()
        self._trunk = Layers(description["recurrent"], self._backend) if trunk is None else trunk

    def load(self, weights: Weights) -> None:
        self._trunk.load(weights)
        self._above.load(weights)

    def initial_carry(self, num_envs: int) -> Array:
        return self._trunk.initial_state(num_envs)

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        with self._backend.context():
            out, state = self._step(obs, carry)
            action, extras = self._above.actions(out, rng, mask)
            return action, self._backend.unwrap(state), {**extras, "carry": carry}

    def outputs(self, obs: Array) -> Array:
        """The last layer's output (N, ...) for first observations of episodes (N, O)."""
        with self._backend.context():
            out, _ = self._step(obs, self.initial_carry(len(obs)))
            return np.asarray(self._backend.unwrap(out))

    def _step(self, obs: Array, carry: Array) -> tuple[Any, Any]:
        wrap = self._backend.wrap
        features, state = self._trunk.step(self._above.normalised(wrap(obs)), wrap(carry))
        return self._above.layered(features), state


class Cell(NamedTuple):
    """gates: G, in torch's order. memory: a layer's state has memory * H numbers."""

    gates: int
    memory: int
    step: Callable[[SimpleNamespace, Any, Any, Any, int], tuple[Any, ...]]
    """(backend, x U + b (N, G H), h W + d (N, G H), the layer's state, H) -> the next h (N, H), and c for LSTM."""


def _rnn(backend: SimpleNamespace, given: Any, recurrent: Any, state: Any, size: int) -> tuple[Any, ...]:
    return (backend.tanh(given + recurrent),)


def _gru(backend: SimpleNamespace, given: Any, recurrent: Any, state: Any, size: int) -> tuple[Any, ...]:
    both = backend.sigmoid(given[:, : 2 * size] + recurrent[:, : 2 * size])
    reset, keep = both[:, :size], both[:, size:]
    new = backend.tanh(given[:, 2 * size :] + reset * recurrent[:, 2 * size :])
    return (new + keep * (state - new),)


def _lstm(backend: SimpleNamespace, given: Any, recurrent: Any, state: Any, size: int) -> tuple[Any, ...]:
    gates = given + recurrent
    both, leave = backend.sigmoid(gates[:, : 2 * size]), backend.sigmoid(gates[:, 3 * size :])
    new = backend.tanh(gates[:, 2 * size : 3 * size])
    memory = both[:, size:] * state[:, size:] + both[:, :size] * new
    return leave * backend.tanh(memory), memory


CELLS = {"rnn": Cell(1, 1, _rnn), "gru": Cell(3, 1, _gru), "lstm": Cell(4, 2, _lstm)}
TRUNK = "actor/trunk/"
"""Of the trunk's parameters and buffers in `Weights`."""

PARTS = ("input_weight", "state_weight", "input_bias", "state_bias")


def trunk_shapes(recurrent: Mapping[str, Any], observations: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a built-in trunk's weights: U (I, G H), W (H, G H), b and d (G H) for each layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    size = int(recurrent["size"])
    width = CELLS[recurrent["kind"]].gates * size
    for layer in range(int(recurrent["layers"])):
        sizes = (size if layer else observations, width), (size, width), (width,), (width,)
        shapes |= {f"{TRUNK}{layer}/{part}": shape for part, shape in zip(PARTS, sizes, strict=True)}
    return shapes


class Layers:
    """The built-in trunk: `actor/trunk/K/{input,state}_{weight,bias}` in `Weights`; formulas as in torch."""

    def __init__(self, recurrent: Mapping[str, Any], backend: SimpleNamespace) -> None:
        self._cell, self._size = CELLS[recurrent["kind"]], int(recurrent["size"])
        self._count, self._backend = int(recurrent["layers"]), backend
        self._layers: list[list[Any]] = []

    def load(self, weights: Weights) -> None:
        self._layers = [
            [self._backend.wrap(weights[f"{TRUNK}{layer}/{part}"]) for part in PARTS] for layer in range(self._count)
        ]

    def initial_state(self, rows: int) -> Array:
        return np.zeros((rows, self._count * self._cell.memory * self._size), np.float32)

    def step(self, x: Any, state: Any) -> tuple[Any, Any]:
        after: list[Any] = []
        width = self._cell.memory * self._size
        for index, (into, again, bias, of_state) in enumerate(self._layers):
            mine = state[:, index * width : (index + 1) * width]
            given, recurrent = x @ into + bias, mine[:, : self._size] @ again + of_state
            found = self._cell.step(self._backend, given, recurrent, mine, self._size)
            x = found[0]
            after += found
        return x, self._backend.concatenate(after, 1)
