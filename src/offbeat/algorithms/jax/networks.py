"""Networks of the JAX algorithms: definitions without arrays, and `Network`, one flat vector with its definition.

A definition draws first weights with NumPy, in the order of the torch networks, and computes outputs from weights by
name. Names, shapes and their order in the flat vector are those of the torch networks, so that both backends read the
same checkpoints.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.memory import check_fits
from offbeat.types import EnvSpec

BYTES_PER_WEIGHT = 16
"""At least: the weight, its gradient and two moments of the optimiser, of four bytes each."""

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
}

Weights = Mapping[str, Any]
"""Arrays by name: NumPy's when they are drawn, JAX's in an update."""


class Definition(Protocol):
    """A network without its arrays. `first` draws weights; calling it computes the output from weights and inputs.

    key: for dropout, which is off without one.
    """

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]: ...

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array: ...


@dataclass(frozen=True)
class MLP:
    """Linear layers with an activation between them: (B, in) -> (B, out), or (E, B, out) for E stacked members.

    First weights are uniform in +-1/sqrt(in). orthogonal: instead orthogonal, times sqrt 2, or times this in the last
    layer, with biases of 0. last_bias: instead of the last part of the last layer's biases.
    """

    sizes: tuple[int, ...]
    activation: str = "relu"
    layer_norm: bool = False
    members: int | None = None
    dropout: float = 0.0
    orthogonal: float | None = None
    last_bias: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        count = (self.members or 1) * sum(first * second for first, second in itertools.pairwise(self.sizes))
        layers = " ".join(map(str, self.sizes))
        check_fits(f"a network of {count:,} weights (layers {layers})", count * BYTES_PER_WEIGHT)

    @property
    def last(self) -> int:
        """The number of the last layer."""
        return len(self.sizes) - 2

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        weights: dict[str, np.ndarray] = {}
        lead = () if self.members is None else (self.members,)
        for index, size in enumerate(itertools.pairwise(self.sizes)):
            bound = 1.0 / math.sqrt(size[0])
            weights[f"{index}/weight"] = rng.uniform(-bound, bound, (*lead, *size))
            weights[f"{index}/bias"] = rng.uniform(-bound, bound, (*lead, size[1]))
            if self.layer_norm and index < self.last:
                weights[f"{index}/norm/scale"] = np.ones((*lead, size[1]))
                weights[f"{index}/norm/offset"] = np.zeros((*lead, size[1]))
        if self.orthogonal is not None:
            weights |= self._orthogonal(rng, self.orthogonal)
        if self.last_bias:
            weights[f"{self.last}/bias"][-len(self.last_bias) :] = self.last_bias
        return weights

    def _orthogonal(self, rng: np.random.Generator, last: float) -> dict[str, np.ndarray]:
        weights: dict[str, np.ndarray] = {}
        for index, (rows, columns) in enumerate(itertools.pairwise(self.sizes)):
            gain = last if index == self.last else math.sqrt(2.0)
            square, triangle = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
            square = square * np.sign(np.diag(triangle))  # else signs would not be equally likely
            weights[f"{index}/weight"] = gain * (square if rows >= columns else square.T)
            weights[f"{index}/bias"] = np.zeros(columns)
        return weights

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)
        if self.members is None:
            return self._forward(weights, x, key)
        # One member after the other: on a CPU this is faster than products of stacked matrices.
        return jnp.stack([self.member(weights, index, x, key=key) for index in range(self.members)])

    def member(self, weights: Weights, index: int, x: Array, key: Array | None = None) -> Array:
        """The output (B, out) of one stacked member."""
        own = {name: array[index] for name, array in weights.items()}
        return self._forward(own, x, None if key is None else jax.random.fold_in(key, index))

    def _forward(self, weights: Weights, x: Array, key: Array | None) -> Array:
        for index in range(len(self.sizes) - 1):
            x = x @ weights[f"{index}/weight"] + weights[f"{index}/bias"]
            if index == self.last:
                break
            if self.dropout and key is not None:
                kept = jax.random.bernoulli(jax.random.fold_in(key, 1_000 + index), 1.0 - self.dropout, x.shape)
                x = jnp.where(kept, x / (1.0 - self.dropout), 0.0)
            if self.layer_norm:
                x = _normalised(x) * weights[f"{index}/norm/scale"] + weights[f"{index}/norm/offset"]
            x = ACTIVATIONS[self.activation](x)
        return x


def _normalised(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


@dataclass(frozen=True)
class StackedCritics:
    """E critics over observation, privileged state and action: -> (E, B).

    For Discrete actions they take no action and return the values of all: -> (E, B, choices).
    """

    mlp: MLP
    scalar: bool

    @classmethod
    def of(
        cls, spec: EnvSpec, members: int, hidden: Sequence[int], features: int | None = None, **settings: Any
    ) -> StackedCritics:
        """features: size of what they take in place of the observation."""
        seen = (spec.observation_size if features is None else features) + spec.state_size
        sizes = (seen + spec.action_size, *hidden, 1) if spec.choices is None else (seen, *hidden, spec.choices)
        return cls(MLP(sizes, members=members, **settings), spec.choices is None)

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self.mlp.first(rng)

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        out = self.mlp(weights, *parts, key=key)
        return out.squeeze(2) if self.scalar else out

    def first_member(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        """The values (B,) of the first critic alone."""
        return self.mlp.member(weights, 0, jnp.concatenate(parts, 1), key=key).squeeze(1)


@dataclass(frozen=True)
class Values:
    """The value V of states, from observation and privileged state: -> (B, 1)."""

    mlp: MLP

    @classmethod
    def of(cls, spec: EnvSpec, hidden: Sequence[int], **settings: Any) -> Values:
        return cls(MLP((spec.observation_size + spec.state_size, *hidden, 1), **settings))

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self.mlp.first(rng)

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        return self.mlp(weights, *parts, key=key)


@dataclass(frozen=True)
class WithLogStd:
    """An actor of means, with the log standard deviation (A,) of its actions as the first of its weights."""

    actor: Any
    initial: tuple[float, ...]

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"log_std": np.array(self.initial), **self.actor.first(rng)}

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        out: Array = self.actor({name: weights[name] for name in weights if name != "log_std"}, *parts, key=key)
        return out


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each named weight of a network is in its flat vector."""

    definition: Any
    shapes: Mapping[str, tuple[int, ...]]

    def split(self, flat: Any) -> dict[str, Any]:
        found, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            found[name] = flat[start : start + size].reshape(shape)
            start += size
        return found


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Network:
    """A network: its weights as one flat vector (P,), and, fixed, what computes with them.

    pieces: the weights by name instead, while a loss is differentiated. key: turns dropout on.
    """

    flat: Array
    layout: Layout = field(metadata={"static": True})
    pieces: dict[str, Array] | None = None
    key: Array | None = None

    @property
    def weights(self) -> dict[str, Array]:
        return self.layout.split(self.flat) if self.pieces is None else self.pieces

    @property
    def definition(self) -> Any:
        return self.layout.definition

    def __call__(self, *parts: Array) -> Array:
        out: Array = self.definition(self.weights, *parts, key=self.key)
        return out

    def first_member(self, *parts: Array) -> Array:
        """The values (B,) of the first of the stacked critics alone."""
        out: Array = self.definition.first_member(self.weights, *parts, key=self.key)
        return out

    def replace(self, flat: Array) -> Network:
        return Network(flat, self.layout)

    def learning(self, pieces: dict[str, Array], key: Array | None) -> Network:
        """The same network with its weights by name."""
        return Network(self.flat, self.layout, pieces, key)

    def with_key(self, key: Array | None) -> Network:
        """The same network with dropout on, as long as it has any."""
        return Network(self.flat, self.layout, self.pieces, key)

    def follow(self, other: Network, share: float) -> Network:
        """Moved towards `other` by `share` (Polyak)."""
        return self.replace(self.flat + share * (other.flat - self.flat))


def make_network(definition: Any, rng: np.random.Generator, dtype: Any) -> Network:
    """A network with first weights from `rng`, still as NumPy's."""
    weights = definition.first(rng)
    layout = Layout(definition, {name: array.shape for name, array in weights.items()})
    return Network(np.concatenate([array.reshape(-1) for array in weights.values()]).astype(dtype), layout)  # type: ignore[arg-type]


Loss = Callable[[Network], tuple[Array, Any]]
"""A network to (loss, anything else to return)."""


def differentiate(loss: Loss, network: Network, key: Array | None = None) -> tuple[Array, Any, Array]:
    """The loss, what it returned besides, and the gradient (P,) at the network's flat vector. key: turns dropout on."""
    found = jax.value_and_grad(lambda pieces: loss(network.learning(pieces, key)), has_aux=True)
    (value, besides), gradient = found(network.weights)
    return value, besides, jnp.concatenate([gradient[name].reshape(-1) for name in network.layout.shapes])
