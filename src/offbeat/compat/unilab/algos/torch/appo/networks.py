"""A user's models as the networks of our APPO: the actor's means and log deviations, and the critic's values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.networks import check_no_shared_parameters
from offbeat.errors import UsageError


class ActorOutput(nn.Module):
    """Observations (B, O) to means and log standard deviations (B, 2A) of a model with a Gaussian output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Tensor) -> Tensor:
        model: Any = self.model
        mean: Tensor = model.mlp(model.obs_normalizer(obs))
        return torch.cat((mean, log_std(model.distribution).expand_as(mean)), -1)


class CriticOutput(nn.Module):
    """Observations of the critic (B, C), where there are some, or else of the actor (B, O), to values (B, 1)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Tensor, state: Tensor) -> Tensor:
        model: Any = self.model
        values: Tensor = model.mlp(model.obs_normalizer(state if state.shape[1] else obs))
        return values


def log_std(distribution: Any) -> Tensor:
    """Of our GaussianDistribution, or of one with rsl_rl's parameters."""
    if callable(getattr(distribution, "log_std", None)):
        own: Tensor = distribution.log_std()
        return own
    low, high = getattr(distribution, "std_range", (1e-6, 1e6))
    if distribution.std_type == "scalar":
        deviation: Tensor = distribution.std_param.clamp(low, high)
        return deviation.log()
    logarithm: Tensor = distribution.log_std_param.exp().clamp(low, high).log()
    return logarithm


def make_networks(actor: Any, critic: Any, device: torch.device, compile: str) -> tuple[Network, Network]:
    """Networks around the models themselves: what our APPO learns is in the models' own parameters."""
    for name, model in (("actor", actor), ("critic", critic)):
        missing = [part for part in ("mlp", "obs_normalizer") if not hasattr(model, part)]
        if not isinstance(model, nn.Module) or missing:
            raise UsageError(
                f"{name} is a {type(model).__name__} without {' and '.join(missing) or 'parameters'}; pass an "
                "MLPModel, or a module with mlp and obs_normalizer"
            )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise UsageError(f"{name} has no parameter that could learn; pass a model that has some")
    if not hasattr(getattr(actor, "distribution", None), "std_type"):
        raise UsageError(
            "actor has no Gaussian output, but APPO needs its log-probabilities: make the actor with distribution_cfg, "
            'such as {"class_name": "GaussianDistribution"}'
        )
    check_no_shared_parameters(actor=actor, critic=critic)
    outputs = ActorOutput(actor.to(device)), CriticOutput(critic.to(device))
    networks = [Network(module, explicit=False, compile=compile) for module in outputs]
    return networks[0], networks[1]


def input_size(model: Any) -> int | None:
    """Numbers that a model takes as observations: as it says, or as its first linear layer does; None if neither."""
    known = getattr(model, "obs_dim", None)
    if isinstance(known, int):
        return known
    return next((layer.in_features for layer in model.mlp.modules() if isinstance(layer, nn.Linear)), None)
