"""Networks with a memory: a recurrent trunk over sequences of observations, and an MLP over its features.

Algorithms pass packed observations through unchanged; `packing` says what their columns are. The output has one row for
each step that is learned from, by time and then by sequence (row t B + b); the first `burn_in` steps only bring the
state up to date, without gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs.groups import recurrence_of
from offbeat.algorithms.jax.networks import Network, Weights
from offbeat.algorithms.jax.own_trunk import own_trunk
from offbeat.algorithms.jax.recurrent import Recurrent
from offbeat.algorithms.packing import Packing
from offbeat.types import EnvSpec

TRUNK = "trunk/"
"""Of the names of a trunk's weights."""


class Trunk(Protocol):
    """What `Recurrent` is, and `OwnRecurrent`, a user's. size: H. state_size: C."""

    @property
    def size(self) -> int: ...

    @property
    def state_size(self) -> int: ...

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]: ...

    def initial_state(self, rows: int, dtype: Any) -> Array: ...

    def __call__(
        self, weights: Weights, x: Array, state: Array, broken: Array, start: Array
    ) -> tuple[Array, Array]: ...

    def step(self, weights: Weights, x: Array, state: Array) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class WithMemory:
    """A recurrent trunk over packed observations, then a network of its features (L B, H) and of the other inputs.

    stored: whether the state to begin with is that of the packed observations; otherwise it is the trunk's initial one.
    A packed observation without time, (R, O + 1 + C), is one step of R sequences.
    """

    trunk: Trunk
    above: Any
    packing: Packing
    stored: bool

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        below = {f"{TRUNK}{name}": array for name, array in self.trunk.first(rng).items()}
        return {**below, **self.above.first(rng)}

    def __call__(self, weights: Weights, obs: Array, *parts: Array, key: Array | None = None) -> Array:
        below, above = _apart(weights)
        out: Array = self.above(above, self.features(below, obs), *parts, key=key)
        return out

    def first_member(self, weights: Weights, obs: Array, *parts: Array, key: Array | None = None) -> Array:
        """The values of the first of stacked critics alone."""
        below, above = _apart(weights)
        out: Array = self.above.first_member(above, self.features(below, obs), *parts, key=key)
        return out

    def features(self, weights: Weights, packed: Array) -> Array:
        """(S, B, ...) -> (L B, H): at the observations, or at those that come after them. weights: of the trunk."""
        trunk, burn_in = self.trunk, self.packing.burn_in if packed.ndim == 3 else 0
        steps = packed if packed.ndim == 3 else packed[None]
        x, flag, start, following, offset = self._columns(steps)
        broken, state = flag[..., 0] > 0.5, trunk.initial_state(steps.shape[1], steps.dtype)
        if not self.stored:
            start = jnp.broadcast_to(state, (len(steps), *state.shape))
        if burn_in:
            fixed = jax.lax.stop_gradient(dict(weights))
            state = trunk(fixed, x[:burn_in], state, broken[:burn_in], start[:burn_in])[1][-1]
        features, states = trunk(weights, x[burn_in:], state, broken[burn_in:], start[burn_in:])
        if not following.shape[2]:
            return _rows(features)
        following = following[burn_in : len(steps) - self.packing.ahead]
        if self.packing.ahead:
            later = offset[burn_in : len(steps) - self.packing.ahead].astype(int)
            states = jnp.take_along_axis(states, later + jnp.arange(len(later))[:, None, None], 0)
        return trunk.step(weights, _rows(following), _rows(states))[0]

    def _columns(self, steps: Array) -> list[Array]:
        """Observation, flag, state to begin with; and of a next observation what to bootstrap from, and its offset."""
        return jnp.split(steps, np.cumsum(self.packing.sizes(steps.shape[2]))[:-1].tolist(), 2)


def _rows(steps: Array) -> Array:
    """(L, B, n) -> (L B, n)."""
    return steps.reshape(-1, steps.shape[2])


def _apart(weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of the trunk, and those above it, by the names that they have there."""
    below = {name.removeprefix(TRUNK): array for name, array in weights.items() if name.startswith(TRUNK)}
    return below, {name: array for name, array in weights.items() if not name.startswith(TRUNK)}


def make_trunk(config: Any, spec: EnvSpec, seed: int, index: int, dtype: Any) -> Trunk | None:
    """The trunk that the settings ask for, over observations; None for network=mlp.

    seed, index: of the first weights of a user's own.
    """
    recurrence = recurrence_of(config)
    if not recurrence.recurrent:
        return None
    if recurrence.own:
        return own_trunk(recurrence.network, spec, seed, index, dtype)
    size, layers = recurrence.recurrent_size, recurrence.recurrent_layers
    return Recurrent(str(recurrence.network), spec.observation_size, size, layers)


def with_memory(config: Any, spec: EnvSpec, trunk: Trunk | None, network: Any, *, acts: bool) -> Any:
    """The network on top of its trunk, if there is one. acts: whether its state is the one that is stored."""
    if trunk is None:
        return network
    packing = Packing.of(config, spec, trunk.state_size)
    return WithMemory(trunk, network, packing, stored=acts and packing.carry > 0)


def above(definition: Any) -> Any:
    """The network above the trunk; the definition itself where it has none."""
    return definition.above if isinstance(definition, WithMemory) else definition


def state_size(network: Network) -> int:
    """Numbers in the recurrent state of a network; 0 where it has no trunk."""
    definition = network.definition
    return definition.trunk.state_size if isinstance(definition, WithMemory) else 0


def first_observations(network: Network, obs: Array) -> Array:
    """Observations (R, O) as a network takes them; for one with a trunk, those of first steps of episodes."""
    definition = network.definition
    if not isinstance(definition, WithMemory):
        return obs
    start = definition.trunk.initial_state(len(obs), obs.dtype)[:, : definition.packing.carry]
    return jnp.concatenate((obs, jnp.ones_like(obs[:, :1]), start), 1)
