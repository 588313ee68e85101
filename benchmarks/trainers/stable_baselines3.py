"""Stable-Baselines3's `learn`; sbx has the same interface with another class."""

from __future__ import annotations

from typing import Any

import stable_baselines3
import torch

from trainers.clock import Clock
from trainers.task import BATCH, HIDDEN, LEARNING_RATE, WARMUP_STEPS, episode_returns


class Contestant:
    algorithm: Any = stable_baselines3.SAC

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
        self.setting = "`SAC(...).learn`"

    def _model(self, environment: str, seed: int) -> Any:
        return self.algorithm(
            "MlpPolicy",
            environment,
            learning_rate=LEARNING_RATE,
            learning_starts=WARMUP_STEPS,
            batch_size=BATCH,
            train_freq=1,
            gradient_steps=1,
            policy_kwargs={"net_arch": list(HIDDEN)},
            device="cpu",
            seed=seed,
        )

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Steps per second between the steps `first` and `last`."""
        clock = Clock(first, last)
        self._model(environment, seed).learn(last, callback=clock)
        return (last - first) / (clock.seen[last] - clock.seen[first])

    def final_returns(self, environment: str, steps: int, seed: int) -> list[float]:
        model = self._model(environment, seed).learn(steps)
        return episode_returns(environment, lambda obs: model.predict(obs, deterministic=True)[0])
