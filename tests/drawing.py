"""Batches drawn from a replay over given shards, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import UniformReplay
from specs import Transitions


class Drawn:
    """A replay over shards, from which batches of any size are drawn. make: (schema, settings) -> replay.

    A replay that wants TD errors gets random ones.
    """

    def __init__(self, shards: Sequence[Shard], make: Any = UniformReplay, **settings: Any) -> None:
        self._shards, self._make, self._settings = shards, make, settings
        self._replays: dict[int, UniformReplay] = {}
        for worker, shard in enumerate(shards):
            shard.worker = worker
        self.replay(1)

    def __len__(self) -> int:
        return len(self.replay(1))

    def replay(self, batch_size: int) -> UniformReplay:
        if batch_size not in self._replays:
            settings = ReplaySettings(capacity=1, batch_size=batch_size, **self._settings)
            replay = self._replays[batch_size] = self._make(self._shards[0].schema, settings)
            for shard in self._shards:
                replay.attach(shard)
        return self._replays[batch_size]

    def sample(self, rng: np.random.Generator, batch_size: int) -> Transitions:
        replay = self.replay(batch_size)
        batches = replay.draw(rng, 1)
        if replay.wants_td_errors:
            replay.feedback(batches.rows, rng.exponential(size=batches.rows.shape))
        columns = {name: column[0] for name, column in batches.columns.items()}
        nothing = columns["obs"][:, :0]
        return Transitions(**{"state": nothing, "next_state": nothing, **columns}, rows=batches.rows[0])
