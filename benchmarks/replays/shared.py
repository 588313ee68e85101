"""Shards in shared memory, written as by collectors and sampled as by the learner; and a plain NumPy gather."""

from __future__ import annotations

import numpy as np

import offbeat
from data import offbeat_columns, rows
from offbeat.memory import Memory
from offbeat.replay.block import pack
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import UniformReplay
from offbeat.types import Chunk, EnvSpec, Layout, Leaf, Schema

FIELDS = ("obs", "action", "reward", "next_obs", "terminated")


class Contestant:
    """shards: the number of shards; 0 is plain NumPy, with one array per field."""

    def __init__(self, threads: int, capacity: int, environments: int, sizes: tuple[int, int], shards: int) -> None:
        self.versions = {"offbeat": offbeat.__version__, "numpy": np.__version__}
        observation, action = sizes
        layout = Layout((Leaf((), "box", (observation,), "float32"),))
        schema = Schema.transitions(EnvSpec("synthetic", layout, (-1.0,) * action, (1.0,) * action, (action,)))
        columns = offbeat_columns(rows(capacity, *sizes))
        self._rng, self._capacity = np.random.default_rng(0), capacity
        self._chunk = Chunk(pack({name: column[:environments] for name, column in columns.items()}, schema))
        if not shards:
            self.setting = "an array for each of " + ", ".join(FIELDS)
            self._arrays = [np.ascontiguousarray(columns[name]) for name in FIELDS]
            return
        self.setting = f"{shards} shard(s) in shared memory"
        self._shards = []
        for worker, part in enumerate(np.array_split(np.arange(capacity), shards)):
            memory = Memory.create(Shard.nbytes(schema, len(part)))
            shard = Shard(schema, len(part), worker=worker, buffer=memory.map())
            shard.write(Chunk({name: column[part] for name, column in columns.items()}))
            self._shards.append(shard)
        self._schema, self._replays = schema, dict[int, UniformReplay]()

    def write(self) -> None:
        self._shards[0].write(self._chunk)

    def sample(self, batch: int) -> None:
        if batch not in self._replays:
            replay = self._replays[batch] = UniformReplay(self._schema, ReplaySettings(self._capacity, batch))
            for shard in self._shards:
                replay.attach(shard)
        self._replays[batch].draw(self._rng, 1)

    def gather(self, batch: int) -> None:
        places = self._rng.integers(0, self._capacity, batch)
        for array in self._arrays:
            array[places]
