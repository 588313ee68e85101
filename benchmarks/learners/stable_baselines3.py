"""Stable-Baselines3's SAC through its public `train`; sbx has the same interface with another class."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger

from data import shaped_environment, shaped_rows


class Contestant:
    setting = "defaults"
    policy_settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        torch.set_num_threads(threads)
        self.versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
        self._make(getattr(stable_baselines3, shape["algorithm"].upper()), capacity, shape)

    def _make(self, algorithm: type, capacity: int, shape: dict[str, Any]) -> None:
        self._batch = shape["batch"]
        self._model = algorithm(
            "MlpPolicy",
            shaped_environment(shape),
            buffer_size=capacity,
            batch_size=self._batch,
            policy_kwargs={"net_arch": list(shape["hidden"]), **self.policy_settings},
            device="cpu",
        )
        self._model.set_logger(Logger(None, []))
        data = shaped_rows(capacity, shape)
        no_info: list[dict[str, Any]] = [{}]
        for index in range(capacity):
            one = np.s_[index : index + 1]
            self._model.replay_buffer.add(
                data.obs[one], data.next_obs[one], data.action[one], data.reward[one], data.terminated[one], no_info
            )

    def learn(self, updates: int) -> None:
        self._model.train(gradient_steps=updates, batch_size=self._batch)
