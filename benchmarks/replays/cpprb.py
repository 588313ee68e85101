"""cpprb's `ReplayBuffer`: NumPy arrays behind C++ and Cython."""

from __future__ import annotations

import importlib.metadata

import numpy as np
from cpprb import ReplayBuffer

from data import rows

_BLOCK = 10_000


class Contestant:
    def __init__(self, threads: int, capacity: int, environments: int, sizes: tuple[int, int], dtype: str) -> None:
        self.versions = {"cpprb": importlib.metadata.version("cpprb"), "numpy": np.__version__}
        self.setting = "defaults"
        observation, action = sizes
        fields = {"obs": {"shape": observation, "dtype": dtype}, "act": {"shape": action}, "rew": {}, "done": {}}
        self._buffer = ReplayBuffer(capacity, fields | {"next_obs": fields["obs"]})
        self._capacity, self._sizes = capacity, sizes
        self._step = self._rows(environments)

    def _rows(self, count: int) -> dict[str, np.ndarray]:
        data = rows(count, *self._sizes)
        return {
            "obs": data.obs,
            "act": data.action,
            "rew": data.reward,
            "next_obs": data.next_obs,
            "done": data.terminated,
        }

    def fill(self) -> None:
        block = self._rows(_BLOCK)
        while self._buffer.get_stored_size() < self._capacity:
            self._buffer.add(**block)

    def add(self) -> None:
        self._buffer.add(**self._step)

    def sample(self, batch: int) -> None:
        self._buffer.sample(batch)
