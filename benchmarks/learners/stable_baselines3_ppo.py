"""Stable-Baselines3's PPO: `compute_returns_and_advantage` and `train` over a full rollout buffer.

The buffer contains the values: Stable-Baselines3 computes them during collection, Offbeat during learning.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from data import environment, rows
from trainers.on_policy import ENVIRONMENTS, EPOCHS, HIDDEN, MINIBATCH, ROLLOUT_STEPS

_FLATTENED = ("observations", "actions", "values", "log_probs", "advantages", "returns")


class Contestant:
    policy_settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, threads: int, observation: int, action: int) -> None:
        torch.set_num_threads(threads)
        self.versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
        self.setting = "`compute_returns_and_advantage` and `train`, values in the buffer already"
        if self.policy_settings:
            self.setting += f"; policy_kwargs {self.policy_settings}"
        self._model = PPO(
            "MlpPolicy",
            DummyVecEnv([lambda: environment(observation, action)] * ENVIRONMENTS),
            n_steps=ROLLOUT_STEPS,
            batch_size=MINIBATCH,
            n_epochs=EPOCHS,
            learning_rate=0.0,  # every call does the same work, and the policy does not change
            policy_kwargs={"net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)}, **self.policy_settings},
            device="cpu",
        )
        self._model.set_logger(Logger(None, []))
        data = rows(ENVIRONMENTS * (ROLLOUT_STEPS + 1), observation, action)
        obs = data.obs.reshape(ROLLOUT_STEPS + 1, ENVIRONMENTS, observation)
        reward, terminated = (each.reshape(-1, ENVIRONMENTS) for each in (data.reward, data.terminated))
        buffer, begun = self._model.rollout_buffer, np.ones(ENVIRONMENTS, np.float32)
        with torch.no_grad():
            for step in range(ROLLOUT_STEPS):
                taken, value, log_prob = self._model.policy(torch.from_numpy(obs[step]))
                buffer.add(obs[step], taken.numpy(), reward[step], begun, value, log_prob)
                begun = terminated[step]
            self._last = self._model.policy.predict_values(torch.from_numpy(obs[-1])), begun
        self._full = {name: getattr(buffer, name) for name in _FLATTENED}

    def learn(self) -> None:
        """Learns once from the rollout, in the state directly after collection."""
        buffer = self._model.rollout_buffer
        for name, array in self._full.items():
            setattr(buffer, name, array)
        buffer.generator_ready = False
        buffer.compute_returns_and_advantage(*self._last)
        self._model.train()
