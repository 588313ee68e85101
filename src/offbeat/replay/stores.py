"""Where a collector's rows go: into a shard, row by row, or into a queue, rollout by rollout.

A plan describes a store, so that the collector's process and the learner's can open the same memory: the collector
through a writer, the learner as the store itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from offbeat.replay.queue import RolloutQueue, WhenFull
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk, Schema

Store = Shard | RolloutQueue


class Writer(Protocol):
    """A collector's side of a store, of a `Shard` or of a `RolloutQueue`."""

    @property
    def rows(self) -> int:
        """Rows written so far, by this process and those before it."""
        ...

    @property
    def may_change_weights(self) -> bool:
        """Whether new weights may be loaded now."""
        ...

    def continue_at(self, rows: int) -> None:
        """Continues after `rows` rows, as a checkpoint says."""
        ...

    def ready(self, permit: int, calls: int) -> bool:
        """Whether a vector step may be made. calls: vector steps made so far. permit: how far the writer may go."""
        ...

    def write(self, chunk: Chunk, valid: Array | None, version: int) -> int:
        """Writes the rows of one vector step and returns their number.

        valid (N,) bool: which environments gave one, None for all. version: of the weights that acted.
        """
        ...

    def cut(self, env: int | None = None) -> None:
        """Marks that the episode of an environment, or of each, does not continue in the rows to come."""
        ...


@dataclass(frozen=True)
class ShardPlan:
    """A shard of so many rows."""

    schema: Schema
    capacity: int
    worker: int = 0

    @property
    def nbytes(self) -> int:
        return Shard.nbytes(self.schema, self.capacity)

    def __str__(self) -> str:
        return f"capacity={self.capacity}"

    def open(self, buffer: Any = None) -> Shard:
        """The shard over a buffer that processes share, or over memory of its own."""
        return Shard(self.schema, self.capacity, worker=self.worker, buffer=buffer)


@dataclass(frozen=True)
class QueuePlan:
    """A queue of rollouts of T = steps."""

    schema: Schema
    steps: int
    num_envs: int
    slots: int = 1
    when_full: WhenFull = "block"

    @property
    def nbytes(self) -> int:
        return RolloutQueue.nbytes(self.schema, self.steps, self.num_envs, self.slots)

    def __str__(self) -> str:
        return f"{self.slots} rollout(s) of rollout_steps={self.steps} for num_envs={self.num_envs}"

    def open(self, buffer: Any = None) -> RolloutQueue:
        """The queue over a buffer that processes share, or over memory of its own."""
        sizes = self.steps, self.num_envs, self.slots
        return RolloutQueue(self.schema, *sizes, when_full=self.when_full, buffer=buffer)


StorePlan = ShardPlan | QueuePlan
