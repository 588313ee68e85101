"""Definitions of networks of a user's own: flax.linen modules, and pairs of `init` and `apply`.

The names of their weights are the paths in their params, with "/" between the parts: `Dense_0/kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs.groups import Reference
from offbeat.algorithms.jax.networks import Network, Weights, WithLogStd
from offbeat.errors import OffbeatError, UsageError
from offbeat.pure_networks import PureNetwork, make_pure
from offbeat.references import resolve
from offbeat.types import EnvSpec


@dataclass(frozen=True, eq=False)
class OwnNetwork:
    """A user's network of observations: -> (B, n). Several outputs (mean and log_std) are concatenated."""

    own: PureNetwork
    initial: dict[str, np.ndarray]

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self.initial

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        out: Any = self.own(weights, *parts)
        joined: Array = jnp.concatenate(tuple(out), -1) if isinstance(out, tuple | list) else out
        return joined


@dataclass(frozen=True, eq=False)
class OwnSampler(OwnNetwork):
    """A user's actor with its own `sample(obs, noise)`: -> (B, A + 1), action and log-probability concatenated."""

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        action, log_prob = self.draw(weights, *parts)
        return jnp.concatenate((action, log_prob[:, None]), 1)

    def draw(self, weights: Weights, obs: Array, noise: Array) -> tuple[Array, Array]:
        """Actions (B, A) and their log-probability (B,), which SAC then takes as they are."""
        action, log_prob = self.own(weights, obs, noise)
        return action, log_prob.reshape(-1)


@dataclass(frozen=True, eq=False)
class OwnValues(OwnNetwork):
    """A user's network of state values, (obs[, privileged state]) -> (B,) or (B, 1): -> (B, 1)."""

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        obs, state = parts
        return _values(self.own(weights, *((obs, state) if state.shape[1] else (obs,))), len(obs), 1)


@dataclass(frozen=True, eq=False)
class OwnCritics:
    """A user's E critics, each (obs, action[, privileged state]) -> (B,) or (B, 1): -> (E, B).

    For Discrete actions: (obs[, privileged state]) -> (B, choices): -> (E, B, choices). The weights of critic e are
    named `e/...`.
    """

    members: tuple[OwnNetwork, ...]
    choices: int | None

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {
            f"{index}/{name}": array
            for index, member in enumerate(self.members)
            for name, array in member.initial.items()
        }

    def __call__(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        return jnp.stack([self._member(weights, index, *parts) for index in range(len(self.members))])

    def first_member(self, weights: Weights, *parts: Array, key: Array | None = None) -> Array:
        """The values (B,) of the first critic alone."""
        return self._member(weights, 0, *parts)

    def _member(self, weights: Weights, index: int, obs: Array, state: Array, *action: Array) -> Array:
        prefix = f"{index}/"
        own = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
        inputs = (obs, *action, state) if state.shape[1] else (obs, *action)
        found = _values(self.members[index].own(own, *inputs), len(obs), self.choices or 1)
        return found[:, 0] if self.choices is None else found


def _values(found: Any, rows: int, each: int) -> Array:
    """What a user's critic returned, as (rows, each)."""
    if isinstance(found, Array) and found.size == rows * each:
        return found.reshape(rows, each)
    gave = tuple(found.shape) if isinstance(found, Array) else f"a {type(found).__name__}"
    wanted = "one value per row" if each == 1 else f"{each} values per row"
    raise UsageError(f"your critic gave {gave} for a batch of {rows}; return {wanted}")


def zero_inputs(spec: EnvSpec, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two rows each of observation, privileged state and action, all zero."""
    obs, state, action = (np.zeros((2, n), dtype) for n in (spec.observation_size, spec.state_size, spec.action_size))
    return obs, state, action


def own_actor(reference: Reference, spec: EnvSpec, seed: int, dtype: Any, samplers: bool) -> OwnNetwork:
    """The network of the setting `actor`. seed: of its first weights. samplers: whether its `sample` would be used."""
    obs, _, noise = zero_inputs(spec, dtype)
    made = resolve(reference, "actor")(spec)
    own, first = make_pure(made, "actor", seeded_key(seed, 0), (obs,), noise if samplers else None)
    return (OwnSampler if own.samples and samplers else OwnNetwork)(own, first)


def own_critics(reference: Reference, spec: EnvSpec, members: int, seed: int, dtype: Any) -> OwnCritics:
    """The critics of actions of the setting `critic`, which is called once for each."""
    obs, state, action = zero_inputs(spec, dtype)
    inputs = (obs, *((action,) if spec.choices is None else ()), *((state,) if spec.state_size else ()))
    make = resolve(reference, "critic")
    each = [make_pure(make(spec), "critic", seeded_key(seed, 1 + index), inputs) for index in range(members)]
    return OwnCritics(tuple(OwnNetwork(*one) for one in each), spec.choices)


def own_q_network(reference: Reference, spec: EnvSpec, seed: int, dtype: Any) -> OwnNetwork:
    """The network of action values (B, choices) of the setting `critic`."""
    obs, _, _ = zero_inputs(spec, dtype)
    return OwnNetwork(*make_pure(resolve(reference, "critic")(spec), "critic", seeded_key(seed, 1), (obs,)))


def own_values(reference: Reference, spec: EnvSpec, seed: int, dtype: Any) -> OwnValues:
    """The critic of states of the setting `critic`."""
    obs, state, _ = zero_inputs(spec, dtype)
    inputs = (obs, state) if spec.state_size else (obs,)
    return OwnValues(*make_pure(resolve(reference, "critic")(spec), "critic", seeded_key(seed, 1), inputs))


def seeded_key(seed: int, index: int) -> Array:
    """The random key of a run's `index`-th network of a user's own."""
    data = np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    return jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(data), impl="threefry2x32"), index)


def refuse_sampler(names: str, actor: Network, wanted: str) -> None:
    """Refuses a user's actor with a method `sample`, for algorithms that call its output alone.

    names: of the algorithms, for the error. wanted: what the network returns.
    """
    inner = actor.definition.actor if isinstance(actor.definition, WithLogStd) else actor.definition
    if isinstance(inner, OwnNetwork) and inner.own.samples:
        raise UsageError(
            f"your actor has a method sample, which {names} never call: return {wanted} from __call__ or apply, and "
            "remove or rename sample (only SAC and REDQ with Box actions call it)"
        )


def check_output_shape(name: str, network: Network, inputs: Sequence[Any], width: int | None, rule: str) -> None:
    """Follows two rows of zeros through a network of a user's own, so that one that does not fit fails early."""
    try:
        out = jax.eval_shape(lambda network, *inputs: network(*inputs), network, *inputs)
    except OffbeatError:
        raise
    except Exception as error:
        raise UsageError(f"your {name} raised {type(error).__name__} on two rows of zeros: {error}") from error
    if not hasattr(out, "shape"):
        raise UsageError(f"your {name} returned a {type(out).__name__}: {rule}")
    if width is not None and out.shape != (2, width):
        raise UsageError(f"your {name} gave {tuple(out.shape)} for 2 rows: {rule}")
