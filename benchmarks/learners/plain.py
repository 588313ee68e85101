"""A plain one-file SAC in the style of CleanRL, which is not a package: modules, autograd, torch.optim.Adam, eager.

Written for this benchmark with CleanRL's structure: two critics as two modules, one optimiser for both, tanh for the
range of the log standard deviation, NumPy replay gathered field by field. The actor is updated in every update; CleanRL
makes two actor updates in every second update, which is equally often.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data import Rows, rows

GAMMA, TAU, RATE = 0.99, 0.005, 3e-4
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Critic(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.value = nn.Linear(sizes[-1], 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        hidden = torch.cat([obs, action], 1)
        for layer in self.layers:
            hidden = F.relu(layer(hidden))
        return self.value(hidden)


class Actor(nn.Module):
    def __init__(self, sizes: list[int], action: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.mean, self.log_std = nn.Linear(sizes[-1], action), nn.Linear(sizes[-1], action)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Squashed actions (B, A) and their log-probabilities (B, 1)."""
        for layer in self.layers:
            obs = F.relu(layer(obs))
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(self.log_std(obs)) + 1)
        normal = torch.distributions.Normal(self.mean(obs), log_std.exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)


class Contestant:
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"torch": torch.__version__}
        self.setting = "own script, eager"
        observation, action, hidden = shape["observation"], shape["action"], list(shape["hidden"])
        self._data, self._batch = rows(capacity, observation, action), shape["batch"]
        self._rng = np.random.default_rng(0)
        self._actor = Actor([observation, *hidden], action)
        self._critics, self._targets = (
            nn.ModuleList(Critic([observation + action, *hidden]) for _ in range(2)) for _ in range(2)
        )
        self._targets.load_state_dict(self._critics.state_dict())
        self._log_alpha, self._target_entropy = torch.zeros(1, requires_grad=True), -float(action)
        self._critic_optimiser = torch.optim.Adam(self._critics.parameters(), lr=RATE)
        self._actor_optimiser = torch.optim.Adam(self._actor.parameters(), lr=RATE)
        self._alpha_optimiser = torch.optim.Adam([self._log_alpha], lr=RATE)

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            self._update()

    def _sample(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        data: Rows = self._data
        index = self._rng.integers(len(data), size=self._batch)
        obs, action, reward, next_obs, terminated = (
            torch.tensor(column[index])
            for column in (data.obs, data.action, data.reward, data.next_obs, data.terminated)
        )
        return obs, action, reward[:, None], next_obs, terminated[:, None]

    def _update(self) -> None:
        obs, action, reward, next_obs, terminated = self._sample()
        alpha = self._log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self._actor(next_obs)
            next_q = torch.min(*(target(next_obs, next_action) for target in self._targets)) - alpha * next_log_prob
            goal = reward + (1 - terminated) * GAMMA * next_q
        critic_loss = sum(F.mse_loss(critic(obs, action), goal) for critic in self._critics)
        self._step(self._critic_optimiser, critic_loss)
        actions, log_prob = self._actor(obs)
        q = torch.min(*(critic(obs, actions) for critic in self._critics))
        self._step(self._actor_optimiser, (alpha * log_prob - q).mean())
        self._step(self._alpha_optimiser, (-self._log_alpha.exp() * (log_prob.detach() + self._target_entropy)).mean())
        for parameter, target in zip(self._critics.parameters(), self._targets.parameters(), strict=True):
            target.data.copy_(TAU * parameter.data + (1 - TAU) * target.data)

    @staticmethod
    def _step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
