"""Actors and critics from settings: our own MLPs or a user's modules, checked when they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.configs.groups import CriticRegularisation, OwnActorCritic
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.memory import WithMemory, make_trunk, memory_name, observation_width, with_memory
from offbeat.algorithms.torch.networks import (
    MLP,
    StackedCritics,
    UserCritics,
    UserNetwork,
    UserSampler,
    Values,
    WithLogStd,
    check_no_shared_parameters,
    own_module,
    short_name,
    user_name,
)
from offbeat.algorithms.torch.seeding import seeded
from offbeat.errors import UsageError
from offbeat.types import EnvSpec

NO_OWN_NETWORKS = OwnActorCritic()


def make_network(config: Any, name: str, module: nn.Module, device: torch.device, dtype: torch.dtype) -> Network:
    """A module with its parameters in one vector, its gradients explicit where the settings and the module allow it.

    name: what an error calls it.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"your {name} has no parameter that could learn; use a module that has some")
    explicit = config.optimisation.gradients == "auto" and device.type == "cpu"
    inner = module.mlp if isinstance(module, WithLogStd) else module
    rename = short_name if isinstance(inner, MLP | StackedCritics | Values) else user_name
    rename = memory_name if isinstance(inner, WithMemory) else rename
    return Network(module.to(device, dtype), rename, explicit, config.optimisation.compile)


def make_actor_and_critics(
    config: Any,
    spec: EnvSpec,
    rng: np.random.Generator,
    device: torch.device,
    dtype: torch.dtype,
    actor_outputs: int,
) -> tuple[Network, Network]:
    """Actor and stacked critics. First weights come from `rng`; torch, which own modules draw from, is seeded by it."""
    with seeded(int(rng.integers(2**62)), device):
        actor, critic = _actor(config, spec, rng, actor_outputs), _critics(config, spec, rng)
    check_no_shared_parameters(actor=actor, critic=critic)
    return make_network(config, "actor", actor, device, dtype), make_network(config, "critic", critic, device, dtype)


def _actor(config: Any, spec: EnvSpec, rng: np.random.Generator, outputs: int) -> nn.Module:
    own = getattr(config, "own_networks", NO_OWN_NETWORKS).actor
    if own is not None:
        module = own_module(own, "actor", spec)
        return UserSampler(module) if hasattr(module, "sample") else UserNetwork(module)
    return make_mlp(config, spec, rng, outputs)


def make_mlp(config: Any, spec: EnvSpec, rng: np.random.Generator, outputs: int) -> nn.Module:
    """The network that acts: an MLP, on a recurrent trunk where the settings ask for one."""
    trunk = make_trunk(config, spec, rng)
    sizes = (spec.observation_size if trunk is None else trunk.size, *config.networks.hidden, outputs)
    mlp = MLP(sizes, activation=config.networks.activation, layer_norm=config.networks.layer_norm, rng=rng)
    return with_memory(config, spec, trunk, mlp, acts=True)


def _critics(config: Any, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    own = getattr(config, "own_networks", NO_OWN_NETWORKS).critic
    if own is not None:
        members = [own_module(own, "critic", spec) for _ in range(config.critic_networks.critics)]
        return UserCritics(members, spec.choices)
    hidden = config.critic_networks.critic_hidden
    hidden = config.networks.hidden if hidden is None else hidden
    regularisation = getattr(config, "critic_regularisation", CriticRegularisation())
    norm, dropout = regularisation.critic_layer_norm, regularisation.critic_dropout
    norm = config.networks.layer_norm if norm is None else norm
    settings = {"activation": config.networks.activation, "layer_norm": norm, "dropout": dropout, "rng": rng}
    trunk = make_trunk(config, spec, rng)
    features = None if trunk is None else trunk.size
    critics = StackedCritics(spec, config.critic_networks.critics, hidden, features, **settings)
    return with_memory(config, spec, trunk, critics, acts=False)


def zero_inputs(spec: EnvSpec, actor: Network) -> tuple[Tensor, Tensor, Tensor]:
    """Two rows each of observation, as the actor takes it, privileged state and action, all zero."""
    sizes = observation_width(actor.module, spec), spec.state_size, spec.action_size
    obs, state, action = (actor.flat.new_zeros(2, size) for size in sizes)
    return obs, state, action


def refuse_sampler(names: str, actor: Network, wanted: str) -> None:
    """Refuses a user's actor with a method `sample`, for algorithms that call its forward alone.

    names: of the algorithms, for the error. wanted: what forward returns.
    """
    inner = actor.module.mlp if isinstance(actor.module, WithLogStd) else actor.module
    if isinstance(inner, UserSampler):
        raise UsageError(
            f"your actor has a method sample, which {names} never call: return {wanted} from forward, and remove or "
            "rename sample (only SAC and REDQ with Box actions call it)"
        )


def check_output_shape(name: str, network: Network, inputs: Sequence[Tensor], width: int | None, rule: str) -> None:
    """Passes two rows of zeros through a network, so that a user's own module that does not fit fails early."""
    network.module.eval()  # so that batch norm does not count these rows
    try:
        out = network(*inputs)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UsageError(f"your {name} raised {type(error).__name__} on two rows of zeros: {error}") from error
    network.module.train()
    if not isinstance(out, Tensor):
        raise UsageError(f"your {name} returned a {type(out).__name__}: {rule}")
    if width is not None and out.shape != (2, width):
        raise UsageError(f"your {name} gave {tuple(out.shape)} for 2 rows: {rule}")
