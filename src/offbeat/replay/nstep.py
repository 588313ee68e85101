"""n-step returns: successor links between rows, the chains that follow them, and the sum over n steps."""

from __future__ import annotations

import numpy as np

from offbeat.replay.shard import Shard
from offbeat.types import Array


def n_step(reward: Array, terminated: Array, truncated: Array, gamma: float) -> tuple[Array, Array, Array]:
    """Folds n consecutive steps into one transition.

    reward, terminated, truncated: (n, B), time first.
    Returns reward (B,), discount (B,) and last (B,), the step whose next observation is bootstrapped.
    Truncation ends the sum and still bootstraps; termination makes the discount 0.
    """
    steps, batch = reward.shape
    ended = np.logical_or(terminated, truncated)
    counted = np.ones((steps, batch), bool)
    counted[1:] = ~np.logical_or.accumulate(ended[:-1], axis=0)
    powers = gamma ** np.arange(steps + 1)
    # `where` instead of multiplication by 0: a NaN reward after the end must not reach the sum.
    total = (powers[:steps, None] * np.where(counted, reward, 0.0)).sum(axis=0)
    last = counted.sum(axis=0) - 1
    alive = 1.0 - terminated[last, np.arange(batch)]
    return total.astype(reward.dtype), (powers[last + 1] * alive).astype(reward.dtype), last


def follow(successor: Array, rows: Array, steps: int, committed: int) -> tuple[Array, Array]:
    """The chains that start at `rows` (B,) and follow their successors: sequences (steps, B) and cut (steps, B).

    successor (capacity,): from `Links`.
    `cut` marks where a chain has no further complete row (its episode ended, or it reached the write head). The sum
    must stop there, as at a truncation. After the cut, the chain repeats its last row.
    """
    chain = np.empty((steps, len(rows)), np.int64)
    cut = np.zeros((steps, len(rows)), bool)
    chain[0] = rows
    for step in range(1, steps):
        following = successor.take(chain[step - 1] % len(successor), mode="clip")
        cut[step - 1] = (following < 0) | (following >= committed)
        chain[step] = np.where(cut[step - 1], chain[step - 1], following)
    return chain, cut


class Links:
    """The successor of each row of a shard: the sequence of the next step of the same environment and episode, or -1.

    A successor is always written after its row, so it stays in the ring at least as long. Only readers that need links
    (n-step returns) compute them; the writer and other readers have no cost.
    """

    def __init__(self, shard: Shard) -> None:
        missing = [name for name in ("env", "episode", "step") if name not in shard.schema.names]
        if missing:
            raise ValueError(f"the rows have no field {missing[0]!r}; n-step links need env, episode and step")
        self._shard = shard
        self._reset()

    def _reset(self) -> None:
        self.successor: Array = np.full(self._shard.capacity, -1, np.int64)
        self._last = np.full(64, -1, np.int64)  # the newest sequence seen of each environment
        self._seen, self._restores = 0, self._shard.restores

    def update(self) -> int:
        """Links the rows that were committed since the last call; returns one past the newest."""
        shard = self._shard
        if shard.restores != self._restores:
            self._reset()
        start, stop = max(self._seen, shard.oldest), shard.committed
        if start < stop:
            self._link(np.arange(start, stop))
        self._seen = stop
        return stop

    def _link(self, sequence: Array) -> None:
        shard, places = self._shard, sequence % self._shard.capacity
        env, episode, step = (shard.column(name)[places].astype(np.int64) for name in ("env", "episode", "step"))
        self.successor[places] = -1
        # Group the rows by environment, in order; the first row of each group may follow a row of an earlier call.
        order = np.argsort(env, kind="stable")
        env, episode, step, sequence = env[order], episode[order], step[order], sequence[order]
        same = env[1:] == env[:-1]
        follows = same & (episode[1:] == episode[:-1]) & (step[1:] == step[:-1] + 1)
        self.successor[sequence[:-1][follows] % shard.capacity] = sequence[1:][follows]
        change = np.flatnonzero(~same)
        first, newest = np.append(0, change + 1), sequence[np.append(change, len(env) - 1)]
        env, episode, step, sequence = env[first], episode[first], step[first], sequence[first]
        if (missing := int(env[-1]) + 1 - len(self._last)) > 0:
            self._last = np.append(self._last, np.full(missing, -1, np.int64))
        previous = self._last[env]
        place = previous % shard.capacity
        follows = shard.column("episode")[place] == episode
        follows &= (shard.column("step")[place].astype(np.int64) + 1 == step) & (previous >= shard.oldest)
        self.successor[place[follows]] = sequence[follows]
        self._last[env] = newest
