"""Actors and critics from settings: our own MLPs or a user's modules, with errors in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.configs import SAC, ActorCritic, Learning
from offbeat.algorithms.torch.differentiate import Gradient, Network
from offbeat.algorithms.torch.networks import (
    MLP,
    Critics,
    OwnCritics,
    OwnNetwork,
    OwnSampler,
    Values,
    WithDeviation,
    check_apart,
    own_name,
    short_name,
)
from offbeat.algorithms.torch.randomness import seeded
from offbeat.errors import SpaceError, UsageError
from offbeat.references import resolve
from offbeat.types import EnvSpec


def check_spaces(name: str, spec: EnvSpec, discrete: bool) -> None:
    """Refuses what the off-policy algorithm `name` cannot take, and says what can."""
    if spec.branches or (spec.choices is not None) != discrete:
        found, others = "Box", "sac, redq, td3, ddpg, ppo or appo"
        if spec.branches:
            found, others = "MultiBinary or MultiDiscrete", "ppo or appo"
        elif spec.choices is not None:
            found, others = "Discrete", "dqn, sac, redq, ppo or appo"
        raise SpaceError(f"{spec.name} has {found} actions, which {name} does not take; use {others}")
    refuse_images(name, spec)


def refuse_images(name: str, spec: EnvSpec) -> None:
    if spec.layout.images:
        image = spec.layout.images[0]
        raise SpaceError(
            f"{spec.name}: the observation {image.name!r} is an image {image.shape}, but {name}'s networks take "
            "vectors (there is no pixel encoder yet): flatten it with gymnasium.wrappers.FlattenObservation, or "
            "leave it out"
        )


def network(config: Learning, name: str, module: nn.Module, device: torch.device, dtype: torch.dtype) -> Network:
    """A module with its parameters in one vector, its gradients explicit where the settings and the module allow it.

    name: what an error calls it.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"your {name} has no parameter that could learn; use a module that has some")
    explicit = config.gradients == "auto" and device.type == "cpu"
    inner = module.mlp if isinstance(module, WithDeviation) else module
    rename = short_name if isinstance(inner, MLP | Critics | Values) else own_name
    return Network(module.to(device, dtype), rename, explicit, config.compile)


def build(
    config: ActorCritic,
    spec: EnvSpec,
    rng: np.random.Generator,
    device: torch.device,
    dtype: torch.dtype,
    actor_outputs: int,
) -> tuple[Network, Network]:
    """Actor and stacked critics. First weights come from `rng`; own modules draw theirs from torch, seeded by it."""
    with seeded(int(rng.integers(2**62)), device):
        actor, critic = _actor(config, spec, rng, actor_outputs), _critics(config, spec, rng)
    check_apart(actor=actor, critic=critic)
    return network(config, "actor", actor, device, dtype), network(config, "critic", critic, device, dtype)


def _actor(config: ActorCritic, spec: EnvSpec, rng: np.random.Generator, outputs: int) -> nn.Module:
    if config.actor is not None:
        module = resolve(config.actor, "actor")(spec)
        return OwnSampler(module) if hasattr(module, "sample") else OwnNetwork(module)
    sizes = (spec.observation_size, *config.hidden, outputs)
    return MLP(sizes, activation=config.activation, layer_norm=config.layer_norm, rng=rng)


def _critics(config: ActorCritic, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.critic is not None:
        make = resolve(config.critic, "critic")
        return OwnCritics([make(spec) for _ in range(config.critics)], spec.choices)
    hidden = config.hidden if config.critic_hidden is None else config.critic_hidden
    norm, dropout = config.layer_norm, 0.0
    if isinstance(config, SAC):
        norm = norm if config.critic_layer_norm is None else config.critic_layer_norm
        dropout = config.critic_dropout
    settings = {"activation": config.activation, "layer_norm": norm, "dropout": dropout, "rng": rng}
    return Critics(spec, config.critics, hidden, **settings)


def zeros(spec: EnvSpec, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two rows each of observation, privileged state and action, all zero."""
    obs, state, action = (like.new_zeros(2, n) for n in (spec.observation_size, spec.state_size, spec.action_size))
    return obs, state, action


def refuse_sampler(name: str, actor: Network, takes: str) -> None:
    """For algorithms that never ask a user's actor to sample: what they take from it is its forward's."""
    inner = actor.module.mlp if isinstance(actor.module, WithDeviation) else actor.module
    if isinstance(inner, OwnSampler):
        raise UsageError(
            f"your actor has a method sample, which {name} never calls: it takes {takes} from forward; return them "
            "there and remove or rename sample (SAC with Box actions is what calls it)"
        )


def try_out(name: str, network: Network, inputs: Sequence[Tensor], width: int | None, rule: str) -> None:
    """Two rows of zeros through a network, so that a user's own module fails here and in words."""
    network.module.eval()  # so that batch norm and its like do not count these rows
    try:
        out = network(*inputs)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UsageError(f"your {name} raised {type(error).__name__} on two rows of zeros: {error}") from error
    network.module.train()
    if not isinstance(out, Tensor):
        raise UsageError(f"your {name} returned a {type(out).__name__}: {rule}")
    if width is not None and out.shape != (2, width):
        raise UsageError(f"your {name} gave {tuple(out.shape)} for 2 rows: {rule}")


def towards(target: Tensor, factor: float) -> Gradient:
    """The gradient of  factor / 2 * sum (Q - target)^2  at values Q; target (B,)."""
    return lambda q: (q - target) * factor
