"""Actors and critics from settings: our own MLPs or a user's networks, checked when they are made."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.algorithms.configs.groups import CriticRegularisation, OwnActorCritic
from offbeat.algorithms.jax.memory import make_trunk, with_memory
from offbeat.algorithms.jax.networks import MLP, Definition, Network, StackedCritics, make_network
from offbeat.algorithms.jax.own_networks import (
    OwnCritics,
    OwnNetwork,
    OwnSampler,
    check_output_shape,
    own_actor,
    own_critics,
    zero_inputs,
)
from offbeat.types import EnvSpec

NO_OWN_NETWORKS = OwnActorCritic()


def make_actor_and_critics(
    config: Any, spec: EnvSpec, rng: np.random.Generator, dtype: Any, actor_outputs: int, samplers: bool = True
) -> tuple[Network, Network]:
    """Actor and stacked critics, with first weights from `rng`.

    samplers: whether a user's actor is called by its `sample(obs, noise)`, where it has one.
    """
    seed = int(rng.integers(2**62))  # of a user's own networks
    actor = make_network(_actor(config, spec, seed, dtype, actor_outputs, samplers), rng, dtype)
    return actor, make_network(_critics(config, spec, seed, dtype), rng, dtype)


def _actor(config: Any, spec: EnvSpec, seed: int, dtype: Any, outputs: int, samplers: bool) -> Definition:
    own = getattr(config, "own_networks", NO_OWN_NETWORKS).actor
    if own is not None:
        return own_actor(own, spec, seed, dtype, samplers)
    return make_mlp(config, spec, seed, dtype, outputs)


def make_mlp(config: Any, spec: EnvSpec, seed: int, dtype: Any, outputs: int) -> Definition:
    """The network that acts: an MLP, on a recurrent trunk where the settings ask for one."""
    trunk = make_trunk(config, spec, seed, 0, dtype)
    sizes = (spec.observation_size if trunk is None else trunk.size, *config.networks.hidden, outputs)
    mlp = MLP(sizes, activation=config.networks.activation, layer_norm=config.networks.layer_norm)
    return with_memory(config, spec, trunk, mlp, acts=True)


def _critics(config: Any, spec: EnvSpec, seed: int, dtype: Any) -> Definition:
    own = getattr(config, "own_networks", NO_OWN_NETWORKS).critic
    if own is not None:
        return own_critics(own, spec, config.critic_networks.critics, seed, dtype)
    hidden = config.critic_networks.critic_hidden
    hidden = config.networks.hidden if hidden is None else hidden
    regularisation = getattr(config, "critic_regularisation", CriticRegularisation())
    norm, dropout = regularisation.critic_layer_norm, regularisation.critic_dropout
    norm = config.networks.layer_norm if norm is None else norm
    settings = {"activation": config.networks.activation, "layer_norm": norm, "dropout": dropout}
    trunk = make_trunk(config, spec, seed, 1, dtype)
    features = None if trunk is None else trunk.size
    critics = StackedCritics.of(spec, config.critic_networks.critics, hidden, features, **settings)
    return with_memory(config, spec, trunk, critics, acts=False)


def check_own_networks(spec: EnvSpec, actor: Network, critic: Network, outputs: int, rule: str) -> None:
    """Raises UsageError for a user's own actor or critics that do not fit. outputs, rule: of the actor."""
    obs, state, action = zero_inputs(spec, actor.flat.dtype)
    if isinstance(actor.definition, OwnSampler):
        check_output_shape("actor", actor, (obs, action), spec.action_size + 1, rule)
    elif isinstance(actor.definition, OwnNetwork):
        check_output_shape("actor", actor, (obs,), outputs, rule)
    if isinstance(critic.definition, OwnCritics):
        check_output_shape("critic", critic, (obs, state, *((action,) if spec.choices is None else ())), None, "")
