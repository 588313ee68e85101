"""What a replay is made with: `(schema, settings) -> Experience`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.memory import check_fits
from offbeat.replay.shard import Shard
from offbeat.replay.stores import ShardPlan
from offbeat.types import Schema


@dataclass(frozen=True)
class ReplaySettings:
    """capacity: transitions kept, over all shards. total_steps: of the run, None without an end.

    dtype: of discounts and sums of rewards.
    """

    capacity: int
    batch_size: int
    n_step: int = 1
    gamma: float = 0.99
    total_steps: int | None = None
    dtype: type[np.floating] = np.float32

    def plan(self, schema: Schema, worker: int, num_envs: int, total_envs: int) -> ShardPlan:
        """The shard of a collector that steps `num_envs` of all environments; its share of the capacity.

        Raises UsageError where memory cannot hold all shards, or as much of them as the run fills.
        """
        whole = Shard.nbytes(schema, self.capacity)
        filled = 0 if self.total_steps is None else Shard.nbytes(schema, min(self.capacity, self.total_steps))
        check_fits(f"capacity={self.capacity}", whole, filled=filled)
        return ShardPlan(schema, max(num_envs, self.capacity * num_envs // total_envs), worker)
