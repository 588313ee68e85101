"""A learner of a user's own, which records what the runner does with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml
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


def trained(path: Path, iterations: int = 3, save_interval: int = 0, logger: str = "none", **options: Any) -> Recorder:
    """The learner after some iterations in the run `path`."""
    runner = small(**options)
    runner.learn(iterations, save_interval, str(path), logger)
    runner.close()
    learner: Recorder = runner.learner
    return learner


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "run" / "summary.json").read_text())
    return found


def config(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((path / "run" / "config.yaml").read_text())
    return found


class Ending(gymnasium.Env[np.ndarray, np.ndarray]):
    """Ends after `length` steps: terminated, truncated, or both."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, length: int = 3, ends: str = "terminated", critic: bool = False) -> None:
        self.length, self.ends, self.steps, self.critic = length, ends, 0, critic
        if critic:
            wide = gymnasium.spaces.Box(-9.0, 9.0, (5,), np.float32)
            self.observation_space = gymnasium.spaces.Dict({"obs": Ending.observation_space, "critic": wide})

    def _observe(self) -> Any:
        obs = np.full(3, 0.1 * self.steps, np.float32)
        return {"obs": obs, "critic": np.full(5, self.steps, np.float32)} if self.critic else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == self.length
        return (
            self._observe(),
            float(action[0]),
            over and self.ends != "truncated",
            over and self.ends != "terminated",
            {},
        )


def actions_of(learner: Recorder) -> Tensor:
    return torch.cat([batch["actions"] for batch in learner.batches])
