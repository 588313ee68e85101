"""What a replay is made with: `(schema, settings) -> Experience`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat.memory import check_fits
from offbeat.replay.shard import Shard
from offbeat.replay.stores import ShardPlan
from offbeat.types import Schema


@dataclass(frozen=True)
class Sequences:
    """Batches of sequences, not of single transitions: `burn_in` steps, then `length` steps that are learned from."""

    length: int
    burn_in: int = 0

    @property
    def steps(self) -> int:
        return self.burn_in + self.length


@dataclass(frozen=True)
class ReplaySettings:
    """capacity: transitions kept, over all shards. total_steps: of the run, None without an end.

    batch_size: transitions, or sequences, in a batch. dtype: of discounts and sums of rewards. sequences: None draws
    single transitions.
    """

    capacity: int
    batch_size: int
    n_step: int = 1
    gamma: float = 0.99
    total_steps: int | None = None
    dtype: type[np.floating] = np.float32
    sequences: Sequences | None = None

    @property
    def batch_rows(self) -> int:
        """Transitions in a batch that are learned from."""
        return self.batch_size * (1 if self.sequences is None else self.sequences.length)

    @property
    def run_length(self) -> int:
        """Consecutive rows of one environment that a sequence, or a transition, is read from."""
        return (1 if self.sequences is None else self.sequences.steps) + self.n_step - 1

    def plan(self, schema: Schema, worker: int, num_envs: int, total_envs: int) -> ShardPlan:
        """The shard of a collector that steps `num_envs` of all environments; its share of the capacity.

        Raises UsageError where memory cannot hold all shards, or as much of them as the run fills.
        """
        whole = Shard.nbytes(schema, self.capacity)
        filled = 0 if self.total_steps is None else Shard.nbytes(schema, min(self.capacity, self.total_steps))
        check_fits(f"capacity={self.capacity}", whole, filled=filled)
        return ShardPlan(schema, max(num_envs, self.capacity * num_envs // total_envs), worker)
