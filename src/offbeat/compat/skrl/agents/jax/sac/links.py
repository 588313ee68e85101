"""What a user's models, and files, see of the learner's state: always its newest values, and it can be set."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from offbeat.compat.skrl.agents.jax.sac.learning import CriticsDefinition, ModelsBackend, Variables, member_weights
from offbeat.compat.skrl.agents.sac.settings import CRITICS, TARGETS
from offbeat.compat.skrl.models.jax.model import StateDict


class Part:
    """The weights of one model inside of a network of the learner, or its moments in the network's optimiser.

    network: its name in the state. index: of a critic in it; None for the policy.
    """

    def __init__(self, backend: ModelsBackend, network: str, index: int | None, variables: Variables) -> None:
        self.backend, self.network, self._index, self._variables = backend, network, index, variables
        self._layout = getattr(backend.state, network).layout

    def read(self, flat: Any) -> Any:
        """The model's variables in a flat vector; copies, because the vector is used up by the next update."""
        weights = self._layout.split(np.array(flat))
        params = self._variables.join(weights if self._index is None else member_weights(weights, self._index))
        with jax.enable_x64(self.backend.dtype == np.float64):
            return jax.device_put(params, flat.device)

    def write(self, flat: Any, params: Any) -> Any:
        """The flat vector with other variables of the model."""
        start = "" if self._index is None else f"{self._index}/"
        pieces = self._layout.split(np.asarray(flat))
        pieces |= {f"{start}{name}": np.asarray(each) for name, each in self._variables.split(params).items()}
        joined = np.concatenate([pieces[name].reshape(-1) for name in self._layout.shapes])
        with jax.enable_x64(self.backend.dtype == np.float64):
            return jax.device_put(joined.astype(flat.dtype), flat.device)


class ModelLink:
    """`state_dict` of a model that is learned. apply_fn: the model's."""

    def __init__(self, part: Part, apply_fn: Any) -> None:
        self._part, self._apply = part, apply_fn
        self._read: tuple[Any, StateDict] | None = None  # the last state dictionary, and the flat vector it is of

    @property
    def _network(self) -> Any:
        return getattr(self._part.backend.state, self._part.network)

    def read(self) -> StateDict:
        flat = self._network.flat
        if self._read is None or self._read[0] is not flat:
            self._read = flat, StateDict.create(apply_fn=self._apply, params=self._part.read(flat))
        return self._read[1]

    def write(self, state: StateDict) -> None:
        backend, network = self._part.backend, self._network
        changed = {self._part.network: network.replace(self._part.write(network.flat, state.params))}
        backend.state = dataclasses.replace(backend.state, **changed)


class LinkedAdam:
    """The optimiser of one model: `state_dict.params` are its steps and moments, by optax's names."""

    def __init__(self, part: Part, optimiser: str) -> None:
        self._part, self._name = part, optimiser

    @property
    def state_dict(self) -> Any:
        memory = getattr(self._part.backend.state, self._name).memory
        params = {
            "count": np.asarray(memory["steps"]).astype(np.int32),
            "mu": self._part.read(memory["mean"]),
            "nu": self._part.read(memory["square"]),
        }
        return SimpleNamespace(params=params, replace=lambda params: params)

    @state_dict.setter
    def state_dict(self, params: Any) -> None:
        backend = self._part.backend
        optimiser = getattr(backend.state, self._name)
        memory = {
            "mean": self._part.write(optimiser.memory["mean"], params["mu"]),
            "square": self._part.write(optimiser.memory["square"], params["nu"]),
            "steps": jnp.asarray(params["count"], optimiser.memory["steps"].dtype),
        }
        changed = dataclasses.replace(optimiser, memory=memory)
        backend.state = dataclasses.replace(backend.state, **{self._name: changed})

    def decoded(self, own: Any, data: bytes) -> Any:
        """Steps and moments in a file of ours or of skrl, whose optax states are nested."""
        return moments_in(own, flax.serialization.msgpack_restore(data))


def moments_in(own: Any, found: Any) -> Any:
    """The first dictionary with count, mu and nu, with the structure of `own`."""
    if isinstance(found, dict):
        if {"count", "mu", "nu"} <= found.keys():
            return flax.serialization.from_state_dict(own, {name: found[name] for name in ("count", "mu", "nu")})
        for each in found.values():
            inside = moments_in(own, each)
            if inside is not None:
                return inside
    return None


class LogEntropyCoefficient:
    """The logarithm (1,) of the entropy coefficient."""

    def __init__(self, backend: ModelsBackend) -> None:
        self._backend = backend

    @property
    def value(self) -> jax.Array:
        return jnp.array(self._backend.state.log_temperature)  # a copy: the next update uses it up

    @property
    def state_dict(self) -> Any:
        return SimpleNamespace(params={"params": self.value}, replace=lambda params: params)

    @state_dict.setter
    def state_dict(self, params: Any) -> None:
        state = self._backend.state
        value = jnp.asarray(params["params"], state.log_temperature.dtype)
        self._backend.state = dataclasses.replace(state, log_temperature=value)


class EntropyAdam:
    """The optimiser of the entropy coefficient, as `LinkedAdam`."""

    def __init__(self, backend: ModelsBackend) -> None:
        self._backend = backend

    @property
    def state_dict(self) -> Any:
        memory = self._backend.state.temperature_optimiser.memory
        params = {
            "count": np.asarray(memory["steps"]).astype(np.int32),
            "mu": {"params": np.array(memory["mean"])},
            "nu": {"params": np.array(memory["square"])},
        }
        return SimpleNamespace(params=params, replace=lambda params: params)

    @state_dict.setter
    def state_dict(self, params: Any) -> None:
        state = self._backend.state
        own = state.temperature_optimiser
        given = {"mean": params["mu"]["params"], "square": params["nu"]["params"], "steps": params["count"]}
        with jax.enable_x64(self._backend.dtype == np.float64):
            memory = {name: jnp.asarray(each, own.memory[name].dtype) for name, each in given.items()}
        changed = dataclasses.replace(own, memory=memory)
        self._backend.state = dataclasses.replace(state, temperature_optimiser=changed)

    def decoded(self, own: Any, data: bytes) -> Any:
        return moments_in(own, flax.serialization.msgpack_restore(data))


def link(models: dict[str, Any], backend: ModelsBackend) -> dict[str, Any]:
    """Links the models' `state_dict` to the learner, and returns optimisers and entropy coefficient by skrl's names."""
    policy: Any = backend.state.actor.definition
    parts = {"policy": Part(backend, "actor", None, policy.variables)}
    for network, names in (("critic", CRITICS), ("target", TARGETS)):
        definition: CriticsDefinition = getattr(backend.state, network).definition
        for index, (name, member) in enumerate(zip(names, definition.members, strict=True)):
            parts[name] = Part(backend, network, index, member[2])
    for name, part in parts.items():
        models[name].__dict__["_link"] = ModelLink(part, models[name].apply)
    return {
        "policy_optimizer": LinkedAdam(parts["policy"], "actor_optimiser"),
        "critic_1_optimizer": LinkedAdam(parts["critic_1"], "critic_optimiser"),
        "critic_2_optimizer": LinkedAdam(parts["critic_2"], "critic_optimiser"),
        "entropy_optimizer": EntropyAdam(backend),
        "log_entropy_coefficient": LogEntropyCoefficient(backend),
    }
