"""Offbeat's replay as its runner uses it: chunks written into a shard, batches drawn by `Uniform`."""

from __future__ import annotations

import numpy as np

import offbeat
from data import offbeat_columns, rows
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import Uniform
from offbeat.types import Chunk, EnvSpec, Layout, Leaf, Schema
from replays.resident import resident_bytes

_BLOCK = 1_000


class Contestant:
    def __init__(self, threads: int, capacity: int, environments: int, sizes: tuple[int, int], dtype: str) -> None:
        self.versions = {"offbeat": offbeat.__version__, "numpy": np.__version__}
        self.setting = "float32 rows, whatever the environment's own dtype"
        self._empty = resident_bytes()
        observation, action = sizes
        layout = Layout((Leaf((), "box", (observation,), dtype),))
        spec = EnvSpec("synthetic", layout, (-1.0,) * action, (1.0,) * action, (action,))
        self._capacity, self._sizes = capacity, sizes
        self._shard = Shard(Schema.transitions(spec), capacity)
        self._experience = Uniform([self._shard])
        self._rng = np.random.default_rng(0)
        # One step of every environment; only the steps' numbers advance from call to call, as in a long episode.
        self._columns = offbeat_columns(rows(environments, observation, action)) | {
            "env": np.arange(environments),
            "episode": np.zeros(environments, np.int64),
            "step": np.zeros(environments, np.int64),
        }

    def fill(self) -> None:
        block = offbeat_columns(rows(_BLOCK, *self._sizes))
        while self._shard.committed < self._capacity:
            self._shard.write(Chunk(block))

    def add(self) -> None:
        self._columns["step"] += 1
        self._shard.write(Chunk(self._columns))

    def sample(self, batch: int) -> None:
        self._experience.sample(self._rng, batch)

    def resident(self) -> int:
        """Bytes that the replay made resident since before it was made."""
        return resident_bytes() - self._empty
