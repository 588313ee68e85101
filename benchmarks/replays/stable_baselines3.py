"""Stable-Baselines3's `ReplayBuffer` with its defaults."""

from __future__ import annotations

import numpy as np
import stable_baselines3
import torch
from gymnasium.spaces import Box
from stable_baselines3.common.buffers import ReplayBuffer

from data import rows
from replays.resident import resident_bytes


class Contestant:
    def __init__(self, threads: int, capacity: int, environments: int, sizes: tuple[int, int], dtype: str) -> None:
        torch.set_num_threads(threads)
        self.versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
        self.setting = "defaults"
        observation, action = sizes
        self._buffer = ReplayBuffer(
            capacity,
            Box(-np.inf, np.inf, (observation,), np.dtype(dtype).type),
            Box(-1.0, 1.0, (action,), np.float32),
            device="cpu",
            n_envs=environments,
        )
        data = rows(environments, observation, action)
        # Its vector environments put this entry into every step's info.
        infos = [{"TimeLimit.truncated": False} for _ in range(environments)]
        self._step = (
            data.obs.astype(dtype),
            data.next_obs.astype(dtype),
            data.action,
            data.reward,
            data.terminated,
            infos,
        )
        self._empty = resident_bytes()

    def fill(self) -> None:
        while not self._buffer.full:
            self._buffer.add(*self._step)

    def add(self) -> None:
        self._buffer.add(*self._step)

    def sample(self, batch: int) -> None:
        self._buffer.sample(batch)

    def resident(self) -> int:
        """Bytes that became resident since the empty replay was made."""
        return resident_bytes() - self._empty
