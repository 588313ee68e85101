"""Q-functions of continuous and of discrete actions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from offbeat.compat.metarl.torch.modules import MLPModule


class ContinuousMLPQFunction(nn.Module):
    """Q(s, a) of observations (B, O) and actions (B, A) in the environment's units: -> (B, 1).

    kwargs: of MLPModule, such as hidden_sizes.
    """

    def __init__(self, env_spec: Any, **kwargs: Any) -> None:
        super().__init__()
        size = env_spec.observation_space.flat_dim + env_spec.action_space.flat_dim
        self.mlp = MLPModule(size, 1, **kwargs)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        values: Tensor = self.mlp(torch.cat((observations, actions), 1))
        return values


class DiscreteMLPQFunction(nn.Module):
    """The values of all actions at observations (B, O): -> (B, actions). dueling: as V + A - mean A, from two outputs.

    kwargs: of MLPModule.
    """

    def __init__(
        self,
        env_spec: Any,
        name: str = "DiscreteMLPQFunction",
        hidden_sizes: tuple[int, ...] = (32, 32),
        dueling: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.name, self.dueling = name, dueling
        outputs = env_spec.action_space.flat_dim + dueling
        self.mlp = MLPModule(env_spec.observation_space.flat_dim, outputs, hidden_sizes, **kwargs)

    def forward(self, observations: Tensor) -> Tensor:
        values: Tensor = self.mlp(observations)
        if not self.dueling:
            return values
        advantages = values[:, 1:]
        return values[:, :1] + advantages - advantages.mean(1, keepdim=True)
