"""The actors of our SAC and TD3 learners: three hidden layers, each half as wide as the one before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.torch.distributions import squash
from offbeat.algorithms.torch.networks import MLP
from offbeat.errors import UsageError

ALGORITHMS = ("sac", "td3")


def hidden_sizes(first: int) -> tuple[int, int, int]:
    """512 is (512, 256, 128)."""
    if first < 4:
        raise UsageError(f"a hidden dimension of {first} cannot be halved twice; use at least 4")
    return first, first // 2, first // 4


def draw_rng() -> np.random.Generator:
    """A generator of first weights, which follows torch.manual_seed."""
    return np.random.default_rng(int(torch.randint(2**62, ())))


class SACActor(nn.Module):
    """Observations (B, O) to mean and log standard deviation (B, 2A) of actions whose tanh acts."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_dim: int = 512,
        log_std_max: float = 0.0,
        log_std_min: float = -5.0,
        use_layer_norm: bool = True,
        mlp: MLP | None = None,
    ) -> None:
        super().__init__()
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        sizes = (obs_dim, *hidden_sizes(hidden_dim), 2 * action_dim)
        made = mlp or MLP(sizes, activation="silu", layer_norm=use_layer_norm, rng=draw_rng())
        self.mlp = made if mlp is not None else made.float()

    def forward(self, obs: Tensor) -> Tensor:
        out: Tensor = self.mlp(obs)
        return out

    @torch.no_grad()
    def explore(self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """Actions (B, A) in [-1, 1]."""
        out = self(obs)
        size = out.shape[-1] // 2
        noise = torch.zeros_like(out[:, :size]) if deterministic else torch.randn_like(out[:, :size])
        return squash(out, noise, (self.log_std_min, self.log_std_max))[0]


class TD3Actor(nn.Module):
    """Observations (B, O) to actions (B, A) in [-1, 1]; exploring adds noise, of one scale per environment.

    The scale is drawn between exp(log_std_min) and exp(log_std_max) where an episode begins.
    """

    carried = ("noise_scales",)
    noise_scales: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_envs: int = 1,
        hidden_dim: int = 512,
        log_std_min: float = -3.0,
        log_std_max: float = 0.0,
        use_layer_norm: bool = True,
        mlp: MLP | None = None,
    ) -> None:
        super().__init__()
        self.log_std_min, self.log_std_max = log_std_min, log_std_max
        self.low, self.high = math.exp(log_std_min), math.exp(log_std_max)
        sizes = (obs_dim, *hidden_sizes(hidden_dim), action_dim)
        made = mlp or MLP(sizes, activation="relu", layer_norm=use_layer_norm, rng=draw_rng())
        self.mlp = made if mlp is not None else made.float()
        scales = self.low + (self.high - self.low) * torch.rand(num_envs, 1)
        self.register_buffer("noise_scales", scales, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.mlp(obs))

    @torch.no_grad()
    def explore(self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """Actions (B, A) in [-1, 1]. dones (B,): where a new episode begins."""
        action = self(obs)
        if deterministic:
            return action
        scales = self.noise_scales.to(action.device)
        if dones is not None and dones.any():
            drawn = self.low + (self.high - self.low) * torch.rand(len(obs), 1, device=action.device)
            scales = torch.where(dones.view(-1, 1) > 0, drawn, scales)
            self.noise_scales = scales
        return (action + scales * torch.randn_like(action)).clamp(-1.0, 1.0)


def build_actor(
    algo_type: str,
    obs_dim: int,
    action_dim: int,
    actor_hidden_dim: int,
    use_layer_norm: bool,
    device: str = "cpu",
    num_envs: int = 1,
    **kwargs: Any,
) -> nn.Module:
    """The actor that acts for a learner of this kind. kwargs: its own options (log_std_min, log_std_max)."""
    common = {"hidden_dim": actor_hidden_dim, "use_layer_norm": use_layer_norm, **kwargs}
    try:
        if algo_type == "sac":
            return SACActor(obs_dim, action_dim, **common).to(device)
        if algo_type == "td3":
            return TD3Actor(obs_dim, action_dim, num_envs, **common).to(device)
    except TypeError as error:
        raise UsageError(f"actor_kwargs={kwargs!r} do not fit the actor of {algo_type}: {error}") from error
    raise UsageError(f"algo_type={algo_type!r} is unknown; use {' or '.join(ALGORITHMS)}")
