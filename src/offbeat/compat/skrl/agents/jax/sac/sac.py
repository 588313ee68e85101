"""`SAC`: skrl's agent in JAX, whose updates, replay and checkpoints are ours."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from offbeat.compat.skrl.agents.jax.agent import Agent
from offbeat.compat.skrl.agents.jax.sac.check_models import check_models
from offbeat.compat.skrl.agents.jax.sac.learning import ModelsBackend, Variables, make_learner
from offbeat.compat.skrl.agents.jax.sac.links import link
from offbeat.compat.skrl.agents.jax.sac.schedules import Rates
from offbeat.compat.skrl.agents.sac.agent import AnySAC
from offbeat.compat.skrl.agents.sac.draws import Draws
from offbeat.compat.skrl.agents.sac.sac_cfg import SAC_CFG
from offbeat.compat.skrl.agents.sac.settings import CRITICS, MODELS, core_config
from offbeat.compat.skrl.agents.tracking import reduced
from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.models.jax import GaussianMixin
from offbeat.learn.learner import Learner
from offbeat.types import Array, Batches


class SAC(AnySAC, Agent):
    """Soft actor-critic with your own models: policy, critic_1, critic_2, target_critic_1 and target_critic_2.

    For evaluation alone, models needs only policy, and no memory is needed. `state_dict` of the models gives the
    trained weights.
    """

    settings_kind = SAC_CFG
    memory_dtypes = (np.float32, np.bool_)
    cfg: SAC_CFG

    # Construction.

    def _check_models(self, models: Any, training: bool) -> None:
        check_models(models, self._sizes, training)

    def _set_up_inputs(self) -> None:
        super()._set_up_inputs()
        self._dtype = np.dtype(next(iter(Variables(self.policy.state_dict.params).dtypes)))
        self._compiled_act = jax.jit(self._act) if type(self.policy).act is GaussianMixin.act else None

    def _set_up_learning(self) -> None:
        cfg = self.cfg
        seed = config.jax.seed
        self.learner = make_learner(self.models, core_config(cfg), self._sizes, self.device, self._dtype, seed)
        self._backend: ModelsBackend = self.learner.backend  # type: ignore[assignment]
        self._linked = link(self.models, self._backend)
        self.policy_optimizer = self._linked["policy_optimizer"]
        self.entropy_optimizer = self._linked["entropy_optimizer"]
        self.critic_1_optimizer, self.critic_2_optimizer = (self._linked[f"{name}_optimizer"] for name in CRITICS)
        self.log_entropy_coefficient = self._linked["log_entropy_coefficient"]
        self._rate_state = Rates(
            cfg.learning_rate,  # type: ignore[arg-type]
            cfg.learning_rate_scheduler,  # type: ignore[arg-type]
            cfg.learning_rate_scheduler_kwargs,  # type: ignore[arg-type]
        )
        self._rate_state.learner = self.learner
        self._schedulers = self._rate_state.schedules
        self.policy_scheduler, self.critic_scheduler, self.entropy_scheduler = self._schedulers
        self._draws = Draws(self.memory, self.streams.sampling, self._dtype.type, _stacked, self._alive)

    def _alive(self, flags: Array) -> Array:
        return (~flags.astype(bool)).astype(self._dtype)

    def _use_settings(self, config: Any) -> None:
        self._backend.use_config(config)

    def _learned_modules(self) -> dict[str, Any]:
        modules: dict[str, Any] = {name: self.models.get(name) for name in MODELS}
        if self.learner is not None:
            learned = self.cfg.learn_entropy
            modules |= {name: each for name, each in self._linked.items() if learned or "entropy" not in name}
            if any(self._schedulers):
                modules["learning_rates"] = self._rate_state
        return modules

    # Interaction.

    def act(
        self, observations: jax.Array, states: jax.Array | None, *, timestep: int, timesteps: int
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Actions of the policy in the environment's own units, with log_prob and mean_actions; first random ones."""
        key = self.streams.acting.integers(0, 2**32, 2, np.uint32)
        inputs = {**self._inputs(observations, states), "key": key}
        if timestep < self.cfg.random_timesteps:
            random: tuple[jax.Array, dict[str, Any]] = self.policy.random_act(inputs, role="policy")
            return random
        with jax.enable_x64(self._dtype == np.float64):
            if self._compiled_act is None:
                found: tuple[jax.Array, dict[str, Any]] = self.policy.act(inputs, role="policy")
                return found
            weights = self.policy.state_dict.params if self.learner is None else self._backend.state.actor.flat
            actions, outputs = self._compiled_act(weights, inputs)
        return actions, outputs

    def _act(self, weights: Any, inputs: dict[str, Any]) -> tuple[jax.Array, dict[str, Any]]:
        """weights: the flat vector of the learner, or, without one, the policy's variables."""
        if self.learner is None:
            found: tuple[jax.Array, dict[str, Any]] = self.policy.act(inputs, role="policy", params=weights)
            return found
        layout = self._backend.state.actor.layout
        actions, outputs = layout.definition.act(layout.split(weights), inputs)
        return actions, outputs

    # Learning.

    def _rates(self) -> Sequence[float]:
        return self._rate_state.now

    @property
    def policy_learning_rate(self) -> float:
        """The learning rate of the policy for the next update; it can be set."""
        return self._rate_state.now[0]

    @policy_learning_rate.setter
    def policy_learning_rate(self, rate: float) -> None:
        self._rate_state.now[0] = float(rate)

    @property
    def critic_learning_rate(self) -> float:
        """The learning rate of the critics for the next update; it can be set."""
        return self._rate_state.now[1]

    @critic_learning_rate.setter
    def critic_learning_rate(self, rate: float) -> None:
        self._rate_state.now[1] = float(rate)

    @property
    def entropy_learning_rate(self) -> float:
        """The learning rate of the entropy coefficient for the next update; it can be set."""
        return self._rate_state.now[2]

    @entropy_learning_rate.setter
    def entropy_learning_rate(self, rate: float) -> None:
        self._rate_state.now[2] = float(rate)

    def _learn(self, learner: Learner, count: int, watch: bool) -> None:
        self._backend.watch = watch
        batches = self._draws(count, self.cfg.batch_size, self.cfg.discount_factor)
        learner.update(self._prepared(batches), np.zeros((count, 2, 0), np.float32))

    def _prepared(self, batches: Batches) -> Batches:
        """The batches with preprocessed observations and states side by side."""
        columns: dict[str, Any] = {name: np.asarray(column) for name, column in batches.columns.items()}
        given: list[Any] = [columns.get(name) for name in ("obs", "state", "next_obs", "next_state")]
        if self.cfg.observation_preprocessor is not None or self.cfg.state_preprocessor is not None:
            given = self._preprocessed(given)
        obs, state, next_obs, next_state = given
        if state is not None and next_state is not None:
            obs, next_obs = np.concatenate((obs, state), -1), np.concatenate((next_obs, next_state), -1)
        others = {name: column for name, column in columns.items() if "obs" not in name and "state" not in name}
        return dataclasses.replace(batches, columns={**others, "obs": obs, "next_obs": next_obs})

    def _preprocessed(self, given: Sequence[Any]) -> list[Any]:
        """Observations, states, and the next ones, (K, B, ...) each; statistics are learned batch by batch."""
        kinds = [self._observation_preprocessor, self._state_preprocessor] * 2
        count = next(len(each) for each in given if each is not None)
        found: list[list[Any]] = []
        for index in range(count):
            rows = [None if each is None else self.arrays.put(each[index], self.device) for each in given]
            found.append([kind(each, train=True) for kind, each in zip(kinds, rows, strict=True)])
        return [None if column[0] is None else _stacked(column) for column in zip(*found, strict=True)]

    def _step_schedulers(self) -> None:
        assert self.learner is not None
        self._rate_state.follow(self.learner.updates)

    def _track_updates(self) -> None:
        for name, scheduler, rate in zip(("Policy", "Critic"), self._schedulers, self._rates(), strict=False):
            if scheduler is not None:
                self.track_data(f"Learning / {name} learning rate", rate)

    def _tracked_arrays(self) -> dict[str, float]:
        if self.learner is None:
            return {}
        values: defaultdict[str, list[float]] = defaultdict(list)
        for seen in self._backend.seen:
            for tag, each in seen.items():
                values[tag].extend(each)
        self._backend.seen.clear()
        return {tag: reduced(tag, each) for tag, each in values.items()}

    @property
    def _entropy_coefficient(self) -> jax.Array:
        return jax.numpy.exp(self.log_entropy_coefficient.value)

    # Resume.

    def _preprocessor_arrays(self, module: Any) -> Mapping[str, Any]:
        return module.arrays() if hasattr(module, "arrays") else _named(module.state_dict.params)

    def _restore_preprocessor(self, module: Any, arrays: Mapping[str, Array]) -> None:
        own = module.state_dict
        structure = jax.tree_util.tree_structure(own.params)
        leaves = [arrays[name] for name in _named(own.params)]
        module.state_dict = own.replace(params=jax.tree_util.tree_unflatten(structure, leaves))

    def restore_state(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """The inverse of `state_arrays` and `state_values`."""
        super().restore_state(arrays, values)
        self._rate_state.now = list(values["rates"])


def _named(params: Any) -> dict[str, Array]:
    """The arrays of a tree by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.array(leaf) for path, leaf in leaves}


def _stacked(arrays: Sequence[Any]) -> Array:
    return np.stack([np.asarray(each) for each in arrays])
