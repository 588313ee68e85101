"""Running statistics that normalise observations, privileged states and rewards; NumPy, shared by every backend."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from offbeat.types import Array, Chunk


class RunningMoments:
    """Mean and variance of rows (R, D), merged batch by batch (Chan et al.), in float64."""

    def __init__(self, size: int) -> None:
        self.count = np.zeros(())
        self.mean, self.square = np.zeros(size), np.zeros(size)  # square: sum of squared deviations

    def update(self, rows: Array) -> None:
        if not len(rows):
            return
        rows = np.asarray(rows, np.float64)
        count, mean = len(rows), rows.mean(0)
        total, delta = self.count + count, mean - self.mean
        self.square = self.square + ((rows - mean) ** 2).sum(0) + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    @property
    def scale(self) -> Array:
        """1 / standard deviation (D,); 1 before there are two rows."""
        if self.count < 2:
            return np.ones_like(self.mean)
        return 1.0 / np.sqrt(self.square / self.count + 1e-8)

    def arrays(self) -> dict[str, Array]:
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.count, self.mean, self.square = (np.array(arrays[name]) for name in ("count", "mean", "square"))


class ReturnScale:
    """The deviation of the discounted return so far, per environment, by which rewards are divided."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.moments = RunningMoments(1)
        self.running = np.zeros(0)  # (N,) discounted sum of each environment's current episode

    def update(self, chunk: Chunk) -> None:
        columns = chunk.columns
        envs = columns["env"].astype(np.int64)
        if len(envs) and envs.max() >= len(self.running):
            self.running = np.pad(self.running, (0, int(envs.max()) + 1 - len(self.running)))
        ended = (columns["terminated"] + columns["truncated"]) > 0
        if len(np.unique(envs)) == len(envs):
            self._step(envs, columns["reward"], ended)
            return
        for row in range(len(envs)):  # several steps of one environment: in their order
            self._step(envs[row : row + 1], columns["reward"][row : row + 1], ended[row : row + 1])

    def _step(self, envs: Array, reward: Array, ended: Array) -> None:
        returns = self.running[envs] * self.gamma + reward
        self.moments.update(returns[:, None])
        self.running[envs] = np.where(ended, 0.0, returns)

    @property
    def scale(self) -> float:
        return float(self.moments.scale[0])

    def arrays(self) -> dict[str, Array]:
        return self.moments.arrays() | {"running": self.running}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.moments.restore(arrays)
        self.running = np.array(arrays["running"])
