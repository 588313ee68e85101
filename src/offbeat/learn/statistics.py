"""Running statistics that normalise observations, privileged states and rewards; NumPy, shared by every backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from offbeat.types import Array, Chunk


class RunningMoments:
    """Mean and variance of rows (R, D), merged batch by batch (Chan et al.), in float64."""

    def __init__(self, size: int) -> None:
        self.count = np.zeros(())
        self.mean, self.square = np.zeros(size), np.zeros(size)  # square: sum of squared deviations
        self.fresh: RunningMoments | None = None  # of rows that count only when all ranks have merged theirs

    def update(self, rows: Array) -> None:
        if not len(rows):
            return
        if self.fresh is not None:
            self.fresh.update(rows)
            return
        rows = np.asarray(rows, np.float64)
        mean = rows.mean(0)
        self.merge(len(rows), mean, ((rows - mean) ** 2).sum(0))

    def merge(self, count: float, mean: Array, square: Array) -> None:
        """Adds rows by their number, mean (D,) and sum of squared deviations (D,)."""
        if not count:
            return
        total, delta = self.count + count, mean - self.mean
        self.square = self.square + square + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def defer(self) -> None:
        """From now on, rows count only when `merge_fresh` brings them, with those of all ranks."""
        self.fresh = RunningMoments(len(self.mean))

    def take_fresh(self) -> Array:
        """Number, mean and squares (1 + 2 D,) of the rows since the last call."""
        assert self.fresh is not None
        found = np.concatenate((self.fresh.count[None], self.fresh.mean, self.fresh.square))
        self.defer()
        return found

    def merge_fresh(self, rows: Array) -> None:
        """Merges what `take_fresh` returned on each rank, (K, 1 + 2 D), in the order of ranks."""
        size = len(self.mean)
        for row in rows:
            self.merge(row[0], row[1 : 1 + size], row[1 + size :])

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


class Preprocessor(Protocol):
    """Transforms observations before any network sees them; the built-in one is `Normaliser`.

    Made by `(spec) -> Preprocessor`, once for the learner and once for each policy that acts. The learner updates its
    own; `arrays` travel with the weights to the policies, which `restore` them. The shape (..., O) must stay.
    """

    def update(self, observations: Array) -> None:
        """Learns from fresh observations (R, O); each is passed once."""
        ...

    def __call__(self, observations: Array) -> Array:
        """(..., O) -> (..., O)"""
        ...

    def arrays(self) -> dict[str, Array]: ...

    def restore(self, arrays: Mapping[str, Array]) -> None: ...


class Normaliser(RunningMoments):
    """Observations minus their running mean, divided by their running deviation, and clipped."""

    def __init__(self, size: int, clip: float, dtype: type[np.floating] = np.float32) -> None:
        super().__init__(size)
        self._clip, self._dtype = clip, dtype
        self._refresh()

    def update(self, rows: Array) -> None:
        super().update(rows)
        self._refresh()

    def merge_fresh(self, rows: Array) -> None:
        super().merge_fresh(rows)
        self._refresh()

    def restore(self, arrays: Mapping[str, Array]) -> None:
        super().restore(arrays)
        self._refresh()

    def _refresh(self) -> None:
        self._mean, self._scale = self.mean.astype(self._dtype), self.scale.astype(self._dtype)

    def __call__(self, observations: Array) -> Array:
        centred = observations.astype(self._dtype)
        centred -= self._mean
        centred *= self._scale
        return np.clip(centred, -self._clip, self._clip, out=centred)

    def acting_arrays(self) -> dict[str, Array]:
        """For the policies of `offbeat.policies`, which apply it themselves."""
        return {
            "normaliser/mean": self.mean.astype(np.float32),
            "normaliser/scale": self.scale.astype(np.float32),
            "normaliser/clip": np.asarray(self._clip, np.float32),
        }


class ReturnScale:
    """The deviation of the discounted return so far, per environment, by which rewards are divided.

    An episode that was broken off, so that another follows without an end, is not carried on.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.moments = RunningMoments(1)
        self.running = np.zeros(0)  # (N,) discounted sum of each environment's current episode
        self.episodes = np.zeros(0, np.int64)  # (N,) which one that is

    def update(self, chunk: Chunk) -> None:
        columns, valid = chunk.columns, np.ones(len(chunk), bool)
        ended = (columns["terminated"] + columns["truncated"]) > 0
        rows = [slice(None)]
        if len(np.unique(columns["env"])) < len(chunk):  # several steps of one environment: in their order
            rows = [slice(row, row + 1) for row in range(len(chunk))]
        for each in rows:
            parts = columns["env"], columns["episode"], columns["reward"], ended, valid
            self.update_steps(*(part[None, each] for part in parts))

    def update_steps(self, env: Array, episode: Array, reward: Array, ended: Array, valid: Array) -> None:
        """T steps of N environments, all (T, N); every environment in a column of its own."""
        envs = env.max(0).astype(np.int64)  # rows that are not valid are zeros
        if len(envs) and envs.max() >= len(self.running):
            missing = 0, int(envs.max()) + 1 - len(self.running)
            self.running, self.episodes = np.pad(self.running, missing), np.pad(self.episodes, missing)
        running, current, returns = self.running[envs], self.episodes[envs], np.zeros(reward.shape)
        for step in range(len(reward)):
            returns[step] = np.where(episode[step] == current, running * self.gamma, 0.0) + reward[step]
            running = np.where(valid[step], np.where(ended[step], 0.0, returns[step]), running)
            current = np.where(valid[step], episode[step], current)
        seen = valid.any(0)  # the others do not even know whose column they are
        self.running[envs[seen]], self.episodes[envs[seen]] = running[seen], current[seen]
        self.moments.update(returns[valid][:, None])

    @property
    def scale(self) -> float:
        return float(self.moments.scale[0])

    def arrays(self) -> dict[str, Array]:
        return self.moments.arrays() | {"running": self.running, "episodes": self.episodes}

    def begin_with(self, arrays: Mapping[str, Array]) -> None:
        """The deviation of another run's returns; whose environments are not these."""
        self.moments.restore(arrays)

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.moments.restore(arrays)
        self.running, self.episodes = np.array(arrays["running"]), np.array(arrays["episodes"])
