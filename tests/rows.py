"""Rows from counting environments that keep their own log, to compare a replay with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from offbeat.replay.nstep import Links
from offbeat.replay.shard import Shard
from offbeat.types import Array, Chunk, Schema
from specs import vector_spec

SCHEMA = Schema.transitions(vector_spec(observation=3, action=2))


@dataclass(frozen=True)
class Row:
    env: int
    episode: int
    step: int
    reward: float
    terminated: bool
    truncated: bool

    @property
    def obs(self) -> tuple[int, int, int]:
        return self.env, self.episode, self.step

    @property
    def next_obs(self) -> tuple[int, int, int]:
        return self.env, self.episode, self.step + 1

    @property
    def action(self) -> tuple[float, float]:
        return self.reward / 2, -self.reward / 2


@dataclass
class Counting:
    """N environments whose observation is (env, episode, step); each contributes to a step with probability `share`."""

    envs: int
    seed: int = 0
    share: float = 1.0
    end: float = 0.2
    log: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.episode, self.step = [0] * self.envs, [0] * self.envs

    def chunk(self, steps: int) -> Chunk:
        rows = [self._row(env) for _ in range(steps) for env in range(self.envs) if self.rng.random() < self.share]
        sequence = len(self.log)
        self.log += rows
        return Chunk(columns(rows), sequence=sequence)

    def _row(self, env: int) -> Row:
        terminated, truncated = self.rng.random() < self.end / 2, self.rng.random() < self.end / 2
        reward = float(np.float32(self.rng.normal()))
        row = Row(env, self.episode[env], self.step[env], reward, bool(terminated), bool(truncated))
        self.step[env] += 1
        if terminated or truncated:
            self.episode[env], self.step[env] = self.episode[env] + 1, 0
        return row


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    def integers(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], np.int64)

    return {
        "obs": np.array([row.obs for row in rows], np.float32).reshape(-1, 3),
        "action": np.array([row.action for row in rows], np.float32).reshape(-1, 2),
        "reward": np.array([row.reward for row in rows], np.float64),
        "terminated": np.array([row.terminated for row in rows], bool),
        "truncated": np.array([row.truncated for row in rows], bool),
        "next_obs": np.array([row.next_obs for row in rows], np.float32).reshape(-1, 3),
        "version": np.zeros(len(rows), np.int64),
        "env": integers("env"),
        "episode": integers("episode"),
        "step": integers("step"),
    }


def successor(log: list[Row], sequence: int) -> int:
    """The next step of the same episode, by looking for it."""
    row = log[sequence]
    for later in range(sequence + 1, len(log)):
        if log[later].obs == row.next_obs:
            return later
    return -1


def links(shard: Shard) -> Array:
    """The successors of a shard's rows (capacity,), found anew."""
    found = Links(shard)
    found.update()
    return found.successor
