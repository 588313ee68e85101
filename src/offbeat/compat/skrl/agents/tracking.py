"""Numbers of an agent between two writes to TensorBoard."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.types import Array

EPISODES = 100
"""Returns and lengths are of at most this many episodes, the last that ended."""
REDUCTIONS: dict[str, Callable[[Any], Any]] = {"max": np.max, "min": np.min, "mean": np.mean}


def reduced(tag: str, values: Sequence[Any]) -> float:
    """The least of the values for a tag that ends in (min), the largest for (max), else their mean."""
    numbers = [float(value) for value in values]
    kind = next((name for name in ("min", "max") if tag.endswith(f"({name})")), "mean")
    return float(REDUCTIONS[kind](numbers))


class EpisodeTracker:
    """Returns and lengths of episodes, and the rewards of single steps.

    keep_rewards: whether to keep the rewards of single steps until `take`, which must then be called from time to time.
    """

    def __init__(self) -> None:
        self.returns, self.lengths = deque[float](maxlen=EPISODES), deque[int](maxlen=EPISODES)
        self._return, self._length = np.zeros(0), np.zeros(0, np.int64)  # (N,) of the current episodes
        self._rewards: list[Array] = []
        self.keep_rewards = True

    def step(self, rewards: Array, ended: Array, valid: Array | None = None) -> None:
        """rewards, ended: (N,) of one step. valid: (N,), False where an environment was only reset; None for all True.

        All N rows are needed, because a row's episode is found by its number.
        """
        if len(self._return) != len(rewards):
            self._return, self._length = np.zeros(len(rewards)), np.zeros(len(rewards), np.int64)
        if valid is None:
            valid = np.ones(len(rewards), np.bool_)
        self._return[valid] += rewards[valid]
        self._length[valid] += 1
        if self.keep_rewards:
            self._rewards.append(rewards[valid])
        ended = ended & valid
        if ended.any():
            self.returns.extend(self._return[ended].tolist())
            self.lengths.extend(self._length[ended].tolist())
            self._return[ended], self._length[ended] = 0.0, 0

    def take(self) -> dict[str, float]:
        """Tags and numbers since the last call."""
        parts = {
            "Reward / Instantaneous reward": np.concatenate(self._rewards) if self._rewards else (),
            "Reward / Total reward": self.returns,
            "Episode / Total timesteps": self.lengths,
        }
        found = {
            f"{tag} ({kind})": float(reduce(values))
            for tag, values in parts.items()
            if len(values)
            for kind, reduce in REDUCTIONS.items()
        }
        self._rewards = []
        self.returns.clear()
        self.lengths.clear()
        return found

    def arrays(self) -> dict[str, Array]:
        return {
            "return": self._return,
            "length": self._length,
            "returns": np.array(self.returns, np.float64),
            "lengths": np.array(self.lengths, np.int64),
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self._return, self._length = np.array(arrays["return"]), np.array(arrays["length"])
        self.returns.extend(arrays["returns"].tolist())
        self.lengths.extend(arrays["lengths"].tolist())
