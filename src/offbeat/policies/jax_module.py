"""A policy whose actor is a user's network in JAX; it runs compiled, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat.errors import CheckpointError, OffbeatError
from offbeat.policies.heads import HEADS, Head, mask_out
from offbeat.policies.mlp import BACKENDS
from offbeat.pure_networks import make_pure
from offbeat.types import Array, EnvSpec, Weights

_DISCRETE_HEADS = ("greedy", "categorical", "multi_categorical")


class JaxModulePolicy:
    """Runs the network that `actor(spec)` creates; its weights are `actor/NAME` in `Weights`.

    Inputs and outputs are those of `module.ModulePolicy`. The network is compiled once for each number of environments.
    """

    def __init__(self, description: Mapping[str, Any], spec: EnvSpec, actor: Callable[[EnvSpec], Any]) -> None:
        self._kind, self._size = description["head"], spec.action_size
        # A user's network returns one value per action, without a separate state value in front.
        self._description = {**description, "action_size": spec.action_size, "dueling": False}
        self._device = jax.local_devices(backend="cpu")[0]
        obs, noise = (np.zeros((2, size), np.float32) for size in (spec.observation_size, spec.action_size))
        with jax.default_device(self._device):
            draws = noise if self._kind == "squashed_gaussian" else None
            self._own, first = make_pure(actor(spec), "actor", jax.random.key(0), (obs,), draws)
        self._samples = self._own.samples and draws is not None
        self._shapes = {name: array.shape for name, array in first.items()}
        self._run = jax.jit(self._outputs)
        self._head: Head
        self._weights: dict[str, Any] = {}
        self._normaliser: tuple[Array, Array, float] | None = None

    def _outputs(self, weights: Mapping[str, Any], *inputs: Any) -> Any:
        out = self._own(weights, *inputs)
        if self._samples:
            return out[0].astype(jnp.float32)
        return (jnp.concatenate(tuple(out), -1) if isinstance(out, tuple | list) else out).astype(jnp.float32)

    def load(self, weights: Weights) -> None:
        own = {name.removeprefix("actor/"): array for name, array in weights.items() if name.startswith("actor/")}
        if self._kind == "gaussian" and not self._description["state_dependent_std"]:
            del own["log_std"]
        for name in sorted(own.keys() | self._shapes.keys()):
            there, here = own[name].shape if name in own else "missing", self._shapes.get(name, "missing")
            if there != here:
                raise CheckpointError(
                    "the weights do not match the network that actor= creates; pass the actor that was trained: "
                    f"{name} is {there} there and {here} here"
                )
        self._weights = {name: jax.device_put(np.array(array), self._device) for name, array in own.items()}
        self._head = HEADS[self._kind](self._description, BACKENDS["numpy"](), weights)
        if "normaliser/mean" in weights:
            mean, scale = (np.array(weights[f"normaliser/{part}"]) for part in ("mean", "scale"))
            self._normaliser = mean, scale, float(weights["normaliser/clip"])

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        x = np.array(obs, np.float32)
        if self._normaliser is not None:
            mean, scale, clip = self._normaliser
            x = ((x - mean) * scale).clip(-clip, clip).astype(np.float32)
        if self._samples:
            shape = (len(x), self._size)
            noise = np.zeros(shape, np.float32) if rng is None else rng.standard_normal(shape, np.float32)
            return np.array(self._run(self._weights, x, noise)), carry, {}
        out = np.array(self._run(self._weights, x))
        if self._kind == "deterministic":
            return out.clip(-1.0, 1.0), carry, {}
        if mask is not None:
            mask_out(out, mask)
        action, extras = self._head(out, rng)
        if self._kind in _DISCRETE_HEADS and np.isnan(action).any():
            raise _no_valid_action(out, action)
        return action, carry, extras


def _no_valid_action(out: Array, action: Array) -> OffbeatError:
    """The error for a network's output (N, ...) without a valid action. action (N, A): NaN where there is none."""
    row = int(np.argwhere(np.isnan(action))[0, 0])
    if not np.isnan(out[row]).any():
        return OffbeatError(
            f"your network returned -inf for every action of observation {row}: {out[row].tolist()}; it must leave at "
            "least one action: correct its mask"
        )
    return OffbeatError(
        f"your network returned {out[row].tolist()} for observation {row}, but each value must be a number, or -inf "
        "for a forbidden action. If it masks actions, use jnp.where(forbidden, -jnp.inf, out), because 0 * inf is NaN; "
        "otherwise its weights have diverged: lower the learning rates, or set max_grad_norm"
    )
