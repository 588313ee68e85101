"""Offbeat's learner as in `offbeat train`: `Training.learn` from its replay."""

from __future__ import annotations

from typing import Any

import torch

import offbeat
from data import offbeat_columns, shaped_environment, shaped_rows
from offbeat.types import Chunk


class Contestant:
    def __init__(
        self, threads: int, capacity: int, shape: dict[str, Any], learner_threads: int | None = None, **own: Any
    ) -> None:
        torch.set_num_threads(learner_threads or threads)
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.setting = f"as `offbeat train {shape['algorithm']}` by default"
        settings = own
        if shape["algorithm"] == "dqn":
            settings["double_q"] = False  # the other libraries have no double Q
            self.setting += ", without double Q"
        self._agent = offbeat.Agent(
            shape["algorithm"],
            shaped_environment(shape),
            capacity=capacity,
            hidden=tuple(shape["hidden"]),
            batch_size=shape["batch"],
            **settings,
        )
        self._agent.add(Chunk(offbeat_columns(shaped_rows(capacity, shape))))

    def learn(self, updates: int) -> None:
        self._agent.training.learn(updates)
