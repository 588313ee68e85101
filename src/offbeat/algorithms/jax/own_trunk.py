"""A recurrent network of a user's own as a trunk: a flax.linen module, or an object with `init` and `apply`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs.groups import Reference
from offbeat.algorithms.jax.networks import Weights
from offbeat.algorithms.jax.own_networks import seeded_key
from offbeat.errors import OffbeatError, UsageError, describe
from offbeat.pure_networks import PureNetwork, make_pure
from offbeat.references import resolve
from offbeat.types import EnvSpec


@dataclass(frozen=True, eq=False)
class OwnRecurrent:
    """A user's network with `initial_state(batch)` and `apply(params, x, state, mask) -> features, state`.

    It is called for one step of a batch: x (B, O), state (B, C), and mask (B, 1), which is 0 where the state is the
    initial one, as at the first step of an episode, and 1 elsewhere. Returns features (B, H) and the next state (B, C).
    initial: its first weights. begin: its `initial_state`. size: H. state_size: C.
    """

    own: PureNetwork
    initial: dict[str, np.ndarray]
    begin: Callable[[int], Any]
    size: int
    state_size: int

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return self.initial

    def initial_state(self, rows: int, dtype: Any) -> Array:
        return jnp.asarray(self.begin(rows), dtype)

    def __call__(self, weights: Weights, x: Array, state: Array, broken: Array, start: Array) -> tuple[Array, Array]:
        """As `Recurrent`."""
        initial = self.initial_state(x.shape[1], x.dtype)

        def body(state: Array, row: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            x, anew, begin = row
            out, after = self._step(weights, x, jnp.where(anew[:, None], begin, state), initial)
            return after, (out, after)

        _, (features, states) = jax.lax.scan(body, state, (x, broken, start))
        return features, states

    def step(self, weights: Weights, x: Array, state: Array) -> tuple[Array, Array]:
        """As `Recurrent`."""
        return self._step(weights, x, state, self.initial_state(len(x), x.dtype))

    def _step(self, weights: Weights, x: Array, state: Array, initial: Array) -> tuple[Array, Array]:
        mask = (state != initial).any(1, keepdims=True).astype(x.dtype)
        out, after = self.own(weights, x, state, mask)
        return out.astype(x.dtype), after.astype(x.dtype)


RULE = "initial_state(batch) must return an array (batch, C), and apply(params, x, state, mask), or __call__ of a "
RULE += "flax.linen module, for x (batch, {}), state (batch, C) and mask (batch, 1), features (batch, H) and the next "
RULE += "state (batch, C)"


def own_trunk(reference: Reference, spec: EnvSpec, seed: int, index: int, dtype: Any) -> OwnRecurrent:
    """The trunk of the setting `network`, tried on two rows of zeros. seed, index: of its first weights."""
    made, rule = resolve(reference, "network")(spec), RULE.format(spec.observation_size)
    begin = getattr(made, "initial_state", None)
    if not callable(begin):
        raise UsageError(f"network: {type(made).__name__} has no initial_state: {rule}")
    try:
        state, one = np.asarray(begin(2)), np.asarray(begin(1))
    except Exception as error:
        raise UsageError(f"network: initial_state(2) raised {describe(error)}; {rule}") from error
    _check_state("initial_state(2)", state, None, rule)
    if one.shape != (1, state.shape[1]):
        raise UsageError(f"network: initial_state(1) gave a state {one.shape} for 1 row; {rule}")
    x, mask = np.zeros((2, spec.observation_size), dtype), np.zeros((2, 1), dtype)
    inputs = x, state.astype(dtype), mask
    own, first = make_pure(made, "network", seeded_key(seed, index), inputs)
    try:
        found = jax.eval_shape(own, first, *inputs)
    except OffbeatError:
        raise
    except Exception as error:
        raise UsageError(f"network: two rows of zeros raised {describe(error)}; {rule}") from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"network: it returned a {type(found).__name__}, not a pair; {rule}")
    features, after = found
    if getattr(features, "ndim", 0) != 2 or len(features) != 2:
        raise UsageError(f"network: it gave features {_shape(features)} for 2 rows; {rule}")
    _check_state("it", after, state.shape, rule)
    return OwnRecurrent(own, first, begin, features.shape[1], state.shape[1])


def _check_state(who: str, state: Any, wanted: tuple[int, ...] | None, rule: str) -> None:
    fits = getattr(state, "ndim", 0) == 2 and len(state) == 2 and state.shape[1] > 0
    if not fits or (wanted is not None and state.shape != wanted):
        must = "" if wanted is None else f", but the state before was {wanted}"
        raise UsageError(
            f"network: {who} gave a state {_shape(state)} for 2 rows{must}; {rule}. Concatenate several parts (of "
            "layers, or h and c) along the last axis"
        )


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if hasattr(value, "shape") else f"of type {type(value).__name__}"
