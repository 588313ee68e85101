"""Stable-Baselines3's `learn`; sbx has the same interface and only names another class."""

from __future__ import annotations

import time
from typing import Any

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback

from trainers.task import BATCH, HIDDEN, WARMUP_STEPS, episode_returns


class _Clock(BaseCallback):
    """Notes when the steps `first` and `last` are made."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self._awaited = {first, last}
        self.seen: dict[int, float] = {}

    def _on_step(self) -> bool:
        if self.num_timesteps in self._awaited:
            self.seen[self.num_timesteps] = time.perf_counter()
        return True


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
            learning_starts=WARMUP_STEPS,
            batch_size=BATCH,
            train_freq=1,
            gradient_steps=1,
            policy_kwargs={"net_arch": list(HIDDEN)},
            device="cpu",
            seed=seed,
        )

    def steps_per_second(self, environment: str, first: int, last: int, seed: int) -> float:
        """Over the steps from `first` to `last`."""
        clock = _Clock(first, last)
        self._model(environment, seed).learn(last, callback=clock)
        return (last - first) / (clock.seen[last] - clock.seen[first])

    def final_returns(self, environment: str, steps: int, seed: int) -> list[float]:
        model = self._model(environment, seed).learn(steps)
        return episode_returns(environment, lambda obs: model.predict(obs, deterministic=True)[0])
