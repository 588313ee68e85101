"""A learner of a user's own, which records what the runner does with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.compat.unilab import OffPolicyRunner


class Actor(nn.Module):
    """A linear policy with noise of a fixed scale."""

    def __init__(self, obs_dim: int = 3, action_dim: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(obs_dim, action_dim)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.linear(obs))

    def explore(
        self, obs: Tensor, dones: Tensor | None = None, deterministic: bool = False, scale: float = 0.3
    ) -> Tensor:
        action = self(obs)
        return action if deterministic else (action + scale * torch.randn_like(action)).clamp(-1.0, 1.0)


class Recorder:
    """Learns a little with an optimiser of its own. calls: the names of its methods, in order. batches: what it got."""

    def __init__(self, obs_dim: int = 3, action_dim: int = 1) -> None:
        torch.manual_seed(0)
        self.actor = Actor(obs_dim, action_dim)
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-2)
        self.update_count = 0
        self.calls: list[str] = []
        self.batches: list[Mapping[str, Tensor]] = []

    def update_critic(self, batch: Mapping[str, Tensor]) -> dict[str, float]:
        self.calls.append("critic")
        self.batches.append(batch)
        return {"critic_loss": 1.0}

    def update_actor(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.calls.append("actor")
        loss = (self.actor(batch["obs"]) - torch.randn(len(batch["obs"]), 1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"actor_loss": loss.detach()}

    def soft_update_target(self) -> None:
        self.calls.append("target")

    def get_state_dict(self) -> dict[str, Any]:
        return {
            "actor": self.actor.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "update_count": self.update_count,
        }


SMALL: dict[str, Any] = {"num_envs": 4, "replay_buffer_n": 64, "batch_size": 8, "updates_per_step": 2, "seed": 0}


def small(
    learner: Any = None, env_name: str = "Pendulum-v1", algo_type: str = "sac", **options: Any
) -> OffPolicyRunner:
    return OffPolicyRunner(learner or Recorder(), env_name, algo_type, **{**SMALL, **options})
