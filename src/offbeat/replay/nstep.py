"""n-step returns: the sum over n steps, and the chains of rows that it is computed from."""

from __future__ import annotations

import numpy as np

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
