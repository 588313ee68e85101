"""Offbeat's APPO in a training loop: `act` and `observe` fill a rollout, `learn` learns from it."""

from __future__ import annotations

from typing import Any

import torch

import offbeat
from data import environment, rows
from trainers.on_policy import ENVIRONMENTS, EPOCHS, HIDDEN, MINIBATCH, ROLLOUT_STEPS


class Contestant:
    def __init__(self, threads: int, observation: int, action: int, **own: Any) -> None:
        torch.set_num_threads(threads)
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.setting = "`Training.learn`: normalises observations, values, V-trace, all minibatches"
        minibatches = ENVIRONMENTS * ROLLOUT_STEPS // MINIBATCH
        self._updates = EPOCHS * minibatches
        self._agent = offbeat.Agent(
            "appo",
            environment(observation, action),
            rollout_steps=ROLLOUT_STEPS,
            minibatches=minibatches,
            epochs=EPOCHS,
            hidden=HIDDEN,
            normalise_observations=True,
            normalise_rewards=True,
            learning_rate=0.0,  # every call does the same work, and the policy does not change
            sample_reuse=1 << 30,
            **own,
        )
        data = rows(ENVIRONMENTS * (ROLLOUT_STEPS + 1), observation, action)
        obs = data.obs.reshape(ROLLOUT_STEPS + 1, ENVIRONMENTS, observation)
        reward, terminated = (each.reshape(-1, ENVIRONMENTS) for each in (data.reward, data.terminated > 0))
        for step in range(ROLLOUT_STEPS):
            taken = self._agent.act(obs[step])
            none = terminated[step] & False
            self._agent.observe(obs[step], taken, reward[step], obs[step + 1], terminated[step], none)

    def learn(self) -> None:
        """Learns once from the rollout."""
        made = self._agent.training.learn(self._updates)
        if made != self._updates:
            raise RuntimeError(f"a turn made {made} updates instead of {self._updates}")
