"""Offbeat's learner as `offbeat train` has it: an agent's `learn` over its own replay."""

from __future__ import annotations

from typing import Any

import torch

import offbeat
from data import environment, offbeat_columns, rows
from offbeat.types import Chunk


class Contestant:
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.setting = "as `offbeat train sac` by default"
        observation, action = shape["observation"], shape["action"]
        self._agent = offbeat.Agent(
            "sac",
            environment(observation, action),
            capacity=capacity,
            hidden=tuple(shape["hidden"]),
            batch_size=shape["batch"],
        )
        self._agent.add(Chunk(offbeat_columns(rows(capacity, observation, action))))

    def learn(self, updates: int) -> None:
        self._agent.learn(updates)
