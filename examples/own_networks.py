"""Your own networks: actor and critic as `torch.nn.Module`, constructed from the spec of the environment.

python examples/own_networks.py [--steps 3000] [--out runs]
cd examples && offbeat train sac --env Pendulum-v1 --actor own_networks:Actor --critic own_networks:Critic
"""

from __future__ import annotations

import argparse

import numpy as np
from torch import Tensor, nn

import offbeat
from offbeat.types import EnvSpec


class Actor(nn.Module):
    """Observations (B, O) to mean and log standard deviation, each (B, A), of the action before the tanh."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.enter = nn.Linear(spec.observation_size, 64)
        self.residual = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
        self.mean, self.log_std = nn.Linear(64, spec.action_size), nn.Linear(64, spec.action_size)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(obs)
        x = x + self.residual(x)
        return self.mean(x), self.log_std(x)


class Critic(nn.Module):
    """Observations (B, O) and actions (B, A) in [-1, 1] to values (B, 1). One module is made per critic."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.observation, self.action = nn.Linear(spec.observation_size, 64), nn.Linear(spec.action_size, 64)
        self.value = nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.value(self.observation(obs) + self.action(action))
        return value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--out", default="runs", help="directory for the run (default: %(default)s)")
    arguments = parser.parse_args()
    run = offbeat.train(
        "sac",
        "Pendulum-v1",
        actor=Actor,
        critic=Critic,
        total_steps=arguments.steps,
        random_steps=min(500, arguments.steps // 2),
        warmup_steps=min(500, arguments.steps // 2),
        eval_every=1_000,
        out=arguments.out,
    )
    # The exported policy contains only weights, so pass the class of the actor again.
    policy = run.policy(actor=Actor)
    print(f"action for a hanging pendulum: {policy.act(np.array([-1.0, 0.0, 0.0]))}")
    print(f"run: {run.path}")


if __name__ == "__main__":
    main()
