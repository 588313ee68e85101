"""The models and the agent of skrl_recurrent.py under `offbeat.compat.skrl`."""

from __future__ import annotations

from typing import Any

import torch

import offbeat
from learners.recurrent_models import make_agent


class Contestant:
    setting = "`offbeat.compat.skrl`, the models and settings of the skrl row"

    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self._agent = make_agent("offbeat.compat.skrl", capacity, shape)

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            self._agent.update(timestep=0, timesteps=1)
