"""Actors and critics from settings: our own MLPs or a user's networks, checked when they are made."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.algorithms.configs.groups import CriticRegularisation, OwnActorCritic
from offbeat.algorithms.jax.networks import MLP, Network, StackedCritics, make_network
from offbeat.types import EnvSpec

NO_OWN_NETWORKS = OwnActorCritic()


def make_actor_and_critics(
    config: Any, spec: EnvSpec, rng: np.random.Generator, dtype: Any, actor_outputs: int
) -> tuple[Network, Network]:
    """Actor and stacked critics, with first weights from `rng`."""
    rng.integers(2**62)  # as in torch, where a user's own modules are seeded with it
    sizes = (spec.observation_size, *config.networks.hidden, actor_outputs)
    actor = MLP(sizes, activation=config.networks.activation, layer_norm=config.networks.layer_norm)
    made = make_network(actor, rng, dtype)
    return made, make_network(_critics(config, spec), rng, dtype)


def _critics(config: Any, spec: EnvSpec) -> StackedCritics:
    hidden = config.critic_networks.critic_hidden
    hidden = config.networks.hidden if hidden is None else hidden
    regularisation = getattr(config, "critic_regularisation", CriticRegularisation())
    norm, dropout = regularisation.critic_layer_norm, regularisation.critic_dropout
    norm = config.networks.layer_norm if norm is None else norm
    settings = {"activation": config.networks.activation, "layer_norm": norm, "dropout": dropout}
    return StackedCritics.of(spec, config.critic_networks.critics, hidden, **settings)
