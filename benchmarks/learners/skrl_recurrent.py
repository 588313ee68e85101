"""skrl's recurrent SAC with GRU models, written as its documentation shows."""

from __future__ import annotations

from typing import Any

import skrl
import torch

from learners.recurrent_models import make_agent


class Contestant:
    setting = "`SAC_RNN`, a GRU in the policy and in each critic, eager, memory with replacement, no tracking"

    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"skrl": skrl.__version__, "torch": torch.__version__}
        self._agent = make_agent("skrl", capacity, shape)

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            self._agent.update(timestep=0, timesteps=1)
