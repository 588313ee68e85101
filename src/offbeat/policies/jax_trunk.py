"""A user's recurrent network in JAX as the trunk of a policy; it runs compiled, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat.errors import CheckpointError, UsageError
from offbeat.policies.recurrent import TRUNK
from offbeat.pure_networks import make_pure
from offbeat.types import Array, EnvSpec, Weights


class JaxTrunk:
    """A network with `initial_state(batch)` and `apply(params, x, state, mask) -> features, state`, for one step.

    mask (N, 1) is 0 where the state is the initial one, as at the first step of an episode, and 1 elsewhere. It is
    compiled once for each number of environments.
    """

    def __init__(self, made: Any, spec: EnvSpec) -> None:
        if not hasattr(made, "initial_state"):
            raise UsageError(
                f"actor= made a {type(made).__name__} without initial_state, but this policy has a recurrent state; "
                "pass the callable that was given as network"
            )
        self._begin, self._device = made.initial_state, jax.local_devices(backend="cpu")[0]
        x, mask = (np.zeros((2, size), np.float32) for size in (spec.observation_size, 1))
        with jax.default_device(self._device):
            self._own, first = make_pure(made, "network", jax.random.key(0), (x, self.initial_state(2), mask))
        self._shapes = {name: array.shape for name, array in first.items()}
        self._run, self._weights = jax.jit(self._step), dict[str, Any]()

    def load(self, weights: Weights) -> None:
        own = {name.removeprefix(TRUNK): array for name, array in weights.items() if name.startswith(TRUNK)}
        for name in sorted(own.keys() | self._shapes.keys()):
            there, here = own[name].shape if name in own else "missing", self._shapes.get(name, "missing")
            if there != here:
                raise CheckpointError(
                    "the weights do not match the network that actor= creates; pass the one that was trained: "
                    f"{name} is {there} there and {here} here"
                )
        self._weights = {name: jax.device_put(np.array(array), self._device) for name, array in own.items()}

    def initial_state(self, rows: int) -> Array:
        return np.array(self._begin(rows), np.float32)

    def step(self, x: Array, state: Array) -> tuple[Array, Array]:
        features, after = self._run(self._weights, np.asarray(x), np.asarray(state), self.initial_state(len(x)))
        return np.array(features), np.array(after)

    def _step(self, weights: Mapping[str, Any], x: Any, state: Any, initial: Any) -> tuple[Any, Any]:
        mask = (state != initial).any(1, keepdims=True).astype(x.dtype)
        features, after = self._own(weights, x, state, mask)
        return features.astype(jnp.float32), after.astype(jnp.float32)
