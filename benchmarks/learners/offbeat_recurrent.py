"""Offbeat's own recurrent SAC, as in `offbeat train sac --network gru`: `Training.learn` from its replay."""

from __future__ import annotations

from typing import Any

import torch

import offbeat
from data import environment, episodes, offbeat_columns, states
from offbeat.types import Chunk


class Contestant:
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"offbeat": offbeat.__version__, "torch": torch.__version__}
        self.setting = f"as `offbeat train sac --network gru --hidden {shape['head']}`: both critics share one GRU"
        self._agent = offbeat.Agent(
            "sac",
            environment(shape["observation"], shape["action"]),
            capacity=capacity,
            network="gru",
            recurrent_size=shape["units"],
            sequence_length=shape["length"],
            batch_size=shape["batch"],
            hidden=(shape["head"],),
        )
        columns = offbeat_columns(episodes(capacity, shape["observation"], shape["action"], shape["episode"]))
        self._agent.add(Chunk({**columns, "carry": states(capacity, shape["units"])}))

    def learn(self, updates: int) -> None:
        self._agent.training.learn(updates)
