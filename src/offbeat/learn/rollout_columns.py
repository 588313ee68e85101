"""A rollout as it was collected, made ready to be learned from; NumPy, the same for every backend."""

from __future__ import annotations

import numpy as np

from offbeat.types import Array, RolloutBatch


def learnable(
    rollout: RolloutBatch, reward_scale: float, largest_reward: float | None, dtype: type[np.floating]
) -> RolloutBatch:
    """The rollout with scaled and clipped rewards, and flags that hold row by row.

    Rows that are not valid have no flag and every action allowed. `truncated` is also set where an episode was broken
    off: the next row is of another episode, or there is none.
    """
    columns, valid = dict(rollout.columns), rollout.valid
    reward = np.asarray(columns["reward"], dtype) * dtype(reward_scale)
    columns["reward"] = reward if largest_reward is None else reward.clip(-largest_reward, largest_reward)
    terminated = columns["terminated"] & valid
    columns["terminated"] = terminated
    columns["truncated"] = (columns["truncated"] & valid) | (_broken_off(columns["episode"], valid) & ~terminated)
    if "mask" in columns:
        columns["mask"] = columns["mask"] | ~valid[..., None]
    return RolloutBatch(columns, valid)


def _broken_off(episode: Array, valid: Array) -> Array:
    """(T, N) bool: rows after which the environment does not continue the same episode."""
    broken = np.zeros_like(valid)
    broken[:-1] = (episode[1:] != episode[:-1]) | ~valid[1:]
    return broken


def count_sequences(valid: Array, length: int) -> int:
    """The sequences of `length` steps of one environment in a rollout, valid (T, N), that hold a valid row."""
    return int(valid.reshape(-1, length, valid.shape[1]).any(1).sum())
