"""The rows of each environment in a shard, in order: which row comes next, and where sequences may begin."""

from __future__ import annotations

import numpy as np

from offbeat.replay.shard import Shard
from offbeat.types import Array


class EnvironmentRows:
    """following (capacity,): the sequence of the next row of the same environment, of any episode; -1 for none yet.

    length: rows in a run. A row can begin a run if that many rows of its environment, itself included, are committed.
    A following row is always written later, so a run whose first row is complete is complete.
    """

    def __init__(self, shard: Shard, length: int) -> None:
        self._shard, self._length = shard, length
        self._reset()

    def _reset(self) -> None:
        self.following: Array = np.full(self._shard.capacity, -1, np.int64)
        self._counts = np.zeros(64, np.int64)  # rows seen of each environment
        self._recent = np.full((64, self._length), -1, np.int64)  # the newest of them: number i is in column i % length
        self._starts = np.full(64, -1, np.int64)  # the newest row of each environment that can begin a run
        self._seen, self._restores, self.newest_start = 0, self._shard.restores, -1

    def update(self) -> int:
        """Takes in the rows that were committed since the last call; returns one past the newest."""
        shard = self._shard
        if shard.restores != self._restores:
            self._reset()
        stop, oldest = shard.committed, shard.oldest
        start = max(self._seen, oldest)
        if start < stop:
            sequence = np.arange(start, stop)
            # Where a writer is overwriting these rows, the numbers may be those of others. Nothing comes of it: runs
            # begin only at rows that are held, which all come after the overwritten ones.
            self._take_in(sequence, shard.column("env")[sequence % shard.capacity].astype(np.int64), oldest)
        self._seen = stop
        return stop

    def _take_in(self, sequence: Array, env: Array, oldest: int) -> None:
        capacity, length = self._shard.capacity, self._length
        order = np.argsort(env, kind="stable")
        env, sequence = env[order], sequence[order]
        self._grow(int(env[-1]) + 1)
        self.following[sequence % capacity] = -1
        same = env[1:] == env[:-1]
        self.following[sequence[:-1][same] % capacity] = sequence[1:][same]
        first = np.flatnonzero(np.append(True, ~same))
        envs, sizes = env[first], np.diff(np.append(first, len(env)))
        previous = self._recent[envs, (self._counts[envs] - 1) % length]
        held = previous >= oldest  # not overwritten, as rows that were not seen may have done
        self.following[previous[held] % capacity] = sequence[first][held]
        rank = np.arange(len(env)) - np.repeat(first, sizes)
        kept = rank >= np.repeat(sizes, sizes) - length
        self._recent[env[kept], (self._counts[env] + rank)[kept] % length] = sequence[kept]
        self._counts[envs] += sizes
        oldest_kept = self._recent[envs, self._counts[envs] % length]
        self._starts[envs] = np.where(self._counts[envs] >= length, oldest_kept, -1)
        self.newest_start = int(self._starts.max())

    def _grow(self, envs: int) -> None:
        if (missing := envs - len(self._counts)) > 0:
            self._counts = np.append(self._counts, np.zeros(missing, np.int64))
            self._starts = np.append(self._starts, np.full(missing, -1, np.int64))
            self._recent = np.concatenate((self._recent, np.full((missing, self._length), -1, np.int64)))

    def has_start(self) -> bool:
        """Whether a held row is known that can begin a run; more may be after `update`."""
        return self._restores == self._shard.restores and self.newest_start >= self._shard.oldest

    def can_begin(self, rows: Array) -> Array:
        """Whether each of these held rows (B,) can begin a run."""
        env = self._shard.column("env")[rows % self._shard.capacity]
        return np.asarray(rows <= self._starts.take(env, mode="clip"))

    def runs(self, rows: Array) -> Array:
        """The rows (length, B) of the runs that begin at these (B,)."""
        runs = np.empty((self._length, len(rows)), np.int64)
        runs[0] = rows
        for step in range(1, self._length):
            self.following.take(runs[step - 1] % self._shard.capacity, mode="clip", out=runs[step])
        return runs
