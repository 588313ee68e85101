"""Where a collector's rows go: into a shard, row by row, or into a queue, rollout by rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from offbeat.collect.control import Control
from offbeat.replay.queue import RolloutQueue, WhenFull
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk, Schema


class Writer(Protocol):
    """A collector's end of the shared memory that its parent reads."""

    @property
    def rows(self) -> int:
        """Rows that were written so far, by this process and those before it."""
        ...

    @property
    def between(self) -> bool:
        """Whether new weights may be taken up now."""
        ...

    def ready(self, control: Control) -> bool:
        """Whether a vector step may be made."""
        ...

    def begin(self, control: Control) -> None:
        """Before each vector step, when it is known which weights act."""
        ...

    def write(self, chunk: Chunk, valid: Array) -> None:
        """The rows of a vector step; valid (N,) bool: whose there are."""
        ...

    def cut(self, env: int | None = None) -> None:
        """An environment's rows so far, or all, do not go on in those to come."""
        ...


class IntoShard:
    """Every vector step counts, and needs a permit."""

    between = True

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.cut = shard.cut

    @property
    def rows(self) -> int:
        return self._shard.committed

    def ready(self, control: Control) -> bool:
        return control.calls < control.permit

    def begin(self, control: Control) -> None:
        pass

    def write(self, chunk: Chunk, valid: Array) -> None:
        self._shard.write(chunk)


class IntoQueue:
    """Every rollout needs a permit and a free slot; within one, nothing is waited for and the weights stay."""

    def __init__(self, queue: RolloutQueue) -> None:
        self._queue = queue

    @property
    def rows(self) -> int:
        return self._queue.written * self._queue.steps * self._queue.num_envs

    @property
    def between(self) -> bool:
        return not self._queue.filling

    def ready(self, control: Control) -> bool:
        queue = self._queue
        return queue.filling or (queue.written < control.permit and queue.room)

    def begin(self, control: Control) -> None:
        if not self._queue.filling:
            self._queue.begin(control.version, control.calls)

    def write(self, chunk: Chunk, valid: Array) -> None:
        self._queue.write(chunk, valid)
        if self._queue.complete:
            self._queue.publish()

    def cut(self, env: int | None = None) -> None:
        """Nothing to do: rows of another episode are seen to be so, and a rollout that was begun is begun again."""


@dataclass(frozen=True)
class ShardPlan:
    """A shard, as it is to be laid over its memory."""

    schema: Schema
    capacity: int
    worker: int

    def open(self, buffer: Any) -> Writer:
        return IntoShard(Shard(self.schema, self.capacity, worker=self.worker, buffer=buffer))


@dataclass(frozen=True)
class QueuePlan:
    """A queue of rollouts of T = steps, as it is to be laid over its memory."""

    schema: Schema
    steps: int
    num_envs: int
    slots: int
    when_full: WhenFull

    @property
    def nbytes(self) -> int:
        return RolloutQueue.nbytes(self.schema, self.steps, self.num_envs, self.slots)

    def queue(self, buffer: Any) -> RolloutQueue:
        sizes = self.steps, self.num_envs, self.slots
        return RolloutQueue(self.schema, *sizes, when_full=self.when_full, buffer=buffer)

    def open(self, buffer: Any) -> Writer:
        return IntoQueue(self.queue(buffer))
