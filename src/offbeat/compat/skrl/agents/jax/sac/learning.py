"""SAC's updates on our core, over the five flax modules that the user made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs import SAC as SACConfig
from offbeat.algorithms.jax import sac
from offbeat.algorithms.jax.batch import Batch, Metrics
from offbeat.algorithms.jax.networks import Layout, Network, make_network
from offbeat.compat.skrl.agents.sac.settings import CRITICS, GROUPS, TARGETS, Sizes, spec_of, target_entropy
from offbeat.learn.backend import UpdateResult
from offbeat.learn.jax import JaxBackend
from offbeat.learn.learner import Learner
from offbeat.types import Array as NumpyArray
from offbeat.types import Batches, EnvSpec

TRACKED = "tracked "
"""What the names of values begin with that are tracked and are not metrics of the learner."""


class Variables:
    """The variables of one model as weights by name. Learned are the floating-point ones of the collection `params`.

    Others, such as statistics of a batch norm, stay as they are; in a model without this collection, all are learned.
    """

    def __init__(self, params: Any) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(params)
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
        inside = "params/" if any(name.startswith("params/") for name in names) else ""
        self._fixed = [np.asarray(leaf) for _, leaf in leaves]
        self._names = [
            name if name.startswith(inside) and np.issubdtype(np.asarray(leaf).dtype, np.floating) else None
            for name, (_, leaf) in zip(names, leaves, strict=True)
        ]

    def split(self, params: Any) -> dict[str, Any]:
        """The learned weights by name."""
        leaves = jax.tree_util.tree_leaves(params)
        return {name: leaf for name, leaf in zip(self._names, leaves, strict=True) if name is not None}

    def join(self, weights: Mapping[str, Any]) -> Any:
        """The model's variables, from the learned weights."""
        pairs = zip(self._names, self._fixed, strict=True)
        leaves = [fixed if name is None else weights[name] for name, fixed in pairs]
        return jax.tree_util.tree_unflatten(self._structure, leaves)

    @property
    def dtypes(self) -> set[str]:
        return {str(fixed.dtype) for name, fixed in zip(self._names, self._fixed, strict=True) if name is not None}


@dataclass(frozen=True, eq=False)
class PolicyDefinition:
    """A user's policy as a definition of our networks: it draws its actions itself, in its own units."""

    model: Any
    variables: Variables
    sizes: Sizes

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The weights that the model has; nothing is drawn."""
        return {name: np.array(each) for name, each in self.variables.split(self.model.state_dict.params).items()}

    def act(self, weights: Mapping[str, Any], inputs: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
        found: tuple[Array, dict[str, Any]] = self.model.act(inputs, role="policy", params=self.variables.join(weights))
        return found

    def draw(self, weights: Mapping[str, Any], obs: Array, key: Array) -> tuple[Array, Array]:
        """Actions (B, A) and their log-probability (B,) for observations and states side by side."""
        action, outputs = self.act(weights, {**self.sizes.split(obs), "key": key})
        log_prob = outputs["log_prob"]
        # Not reduced: in the losses, which are means over all numbers, that is the mean over components.
        return action, log_prob.reshape(len(log_prob), -1).mean(-1)


@dataclass(frozen=True, eq=False)
class CriticsDefinition:
    """A user's critics as a definition of our networks: -> (E, B)."""

    members: tuple[tuple[str, Any, Variables], ...]
    sizes: Sizes

    def first(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The weights that the models have; nothing is drawn."""
        return {
            f"{index}/{name}": np.array(each)
            for index, (_, model, variables) in enumerate(self.members)
            for name, each in variables.split(model.state_dict.params).items()
        }

    def __call__(self, weights: Mapping[str, Any], *parts: Array, key: Array | None = None) -> Array:
        obs, action = parts[0], parts[-1]
        values = []
        for index, (role, model, variables) in enumerate(self.members):
            params = variables.join(member_weights(weights, index))
            inputs = {**self.sizes.split(obs), "taken_actions": action}
            values.append(model.act(inputs, role=role, params=params)[0].reshape(-1))
        return jnp.stack(values)


def member_weights(weights: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The weights of one of the critics, by the names in its model."""
    start = f"{index}/"
    return {name.removeprefix(start): each for name, each in weights.items() if name.startswith(start)}


class OwnModelsSAC:
    """The functions that `JaxBackend` needs of an algorithm: our SAC, with networks that are a user's modules."""

    def __init__(self, models: Mapping[str, Any], sizes: Sizes) -> None:
        self._models, self._sizes = models, sizes

    def init(self, config: SACConfig, spec: EnvSpec, rng: np.random.Generator, device: Any, dtype: Any) -> sac.SACState:
        """Networks with the weights that the user's models have; targets begin equal to critics."""
        policy = self._models["policy"]
        definition = PolicyDefinition(policy, Variables(policy.state_dict.params), self._sizes)
        actor = make_network(definition, rng, dtype)
        critic = make_network(self._critics(CRITICS), rng, dtype)
        target = Network(critic.flat, Layout(self._critics(TARGETS), critic.layout.shapes))
        return replace(sac.new_state(config, actor, critic), target=target)

    def _critics(self, names: Sequence[str]) -> CriticsDefinition:
        members = [(name, self._models[name], Variables(self._models[name].state_dict.params)) for name in names]
        return CriticsDefinition(tuple(members), self._sizes)

    def noise_shape(self, config: SACConfig, spec: EnvSpec) -> tuple[int, ...]:
        """None: policies draw with a random key of each update."""
        return (2, 0)

    def update(
        self,
        state: sac.SACState,
        config: SACConfig,
        spec: EnvSpec,
        batch: Batch,
        noise: Array,
        rates: Mapping[str, Array],
        updates: Array,
    ) -> tuple[sac.SACState, Metrics, Array]:
        before = state
        state, metrics, errors = sac.update(state, config, spec, batch, jax.random.split(batch.key), rates, updates)
        values = before.critic(batch.obs, batch.state, batch.action)  # which XLA computes once, with the loss
        tracked = {"Q-network / Q1": values[0], "Q-network / Q2": values[1], "Target / Target": values[0] - errors[0]}
        for tag, each in tracked.items():
            metrics |= {f"{TRACKED}{tag} (max)": each.max(), f"{TRACKED}{tag} (min)": each.min()}
            metrics |= {f"{TRACKED}{tag} (mean)": each.mean()}
        goal = target_entropy(config, spec.action_size)
        if goal is not None:
            metrics[f"{TRACKED}Loss / Entropy loss"] = before.log_temperature[0] * (metrics["entropy"] - goal)
        return state, metrics, errors

    def policy_description(self, config: SACConfig, spec: EnvSpec) -> dict[str, Any]:
        return {"kind": "module", "head": "gaussian", "action_size": spec.action_size}


class ModelsBackend(JaxBackend):
    """`JaxBackend` that keeps what is tracked of the last updates in `seen`, where `watch` says so."""

    watch = False

    def update(
        self,
        batches: Batches,
        noise: NumpyArray,
        rates: Sequence[Mapping[str, float]],
        *,
        updates: int,
        seed: int,
        td_errors: bool,
    ) -> UpdateResult:
        result = JaxBackend.update(self, batches, noise, rates, updates=updates, seed=seed, td_errors=td_errors)
        tracked = {name: values for name, values in result.metrics.items() if name.startswith(TRACKED)}
        if self.watch:
            self.seen.append({name.removeprefix(TRACKED): values for name, values in tracked.items()})
        return replace(result, metrics={name: each for name, each in result.metrics.items() if name not in tracked})

    @property
    def seen(self) -> list[dict[str, Any]]:
        """Values of each update by tag, one dictionary per call; they may still be computed."""
        found: list[dict[str, Any]] = self.__dict__.setdefault("_seen", [])
        return found


def make_learner(
    models: Mapping[str, Any], config: SACConfig, sizes: Sizes, device: Any, dtype: Any, seed: int
) -> Learner:
    """The learner of the user's models, whose weights it holds. seed: of the policy's random keys."""
    spec, module = spec_of(sizes), OwnModelsSAC(models, sizes)
    rng = np.random.default_rng(0)  # draws nothing: the user's models have their first weights
    name = f"{device.platform}:{device.id}"
    backend = ModelsBackend(module, config, spec, rng=rng, device=name, precision=str(np.dtype(dtype)))
    return Learner(config, spec, backend, groups=GROUPS, dtype=np.dtype(dtype).type, seed=seed)
