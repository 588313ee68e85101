"""The default memory: our replay, filled from the samples of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.compat.tmrl.spaces import spec_of_spaces
from offbeat.errors import UsageError
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import UniformReplay
from offbeat.types import Array, Chunk, Schema

MOST_SOURCES = 2**16


@dataclass
class _Episode:
    """Where a source stands: its number, its episode and step there, and its last observation (None after an end)."""

    env: int
    episode: int = 0
    step: int = 0
    last: Array | None = None


class ReplayMemory:
    """Our uniform replay behind the interface of a memory.

    Observations are stored as float32 vectors, actions as float32 in the environment's units. A batch is 6 tensors on
    `device`: observation (B, O), action (B, *shape), reward (B,), next observation (B, O), terminated and truncated
    (B,), the last two as float32. Each worker's episodes are followed separately, so a buffer may end within one.
    """

    def __init__(
        self,
        nb_steps: int,
        device: Any,
        *,
        observation_space: Any,
        action_space: Any,
        memory_size: int = 1_000_000,
        batch_size: int = 256,
        seed: int = 0,
    ) -> None:
        memory_size, batch_size = int(memory_size), int(batch_size)
        for name, value in (("memory_size", memory_size), ("batch_size", batch_size)):
            if value < 1:
                raise UsageError(f"{name}={value} is out of range: it must be at least 1")
        self.nb_steps, self.device = nb_steps, device
        self.memory_size, self.batch_size = memory_size, batch_size
        self.spec = spec_of_spaces(observation_space, action_space)
        self._replay = UniformReplay(Schema.transitions(self.spec), ReplaySettings(memory_size, batch_size))
        plan = self._replay.plan(0, 1, 1)
        self._shard = plan.open()
        self._replay.attach(self._shard)
        self._rng = np.random.default_rng(seed)
        self._sources: dict[str, _Episode] = {}
        self.stat_train_return = self.stat_test_return = 0.0
        self.stat_train_steps = self.stat_test_steps = 0

    @property
    def shards(self) -> Mapping[str, Shard]:
        """The stored rows, which a checkpoint saves in segments."""
        return self._replay.shards

    def __len__(self) -> int:
        return len(self._replay)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for _ in range(self.nb_steps):
            yield self.sample()

    def sample(self) -> tuple[Any, ...]:
        import torch

        batch = self._replay.draw(self._rng, 1)
        rows = self._shard.gather(batch.rows[0])
        action = rows["action"].reshape(len(rows), *self.spec.action_shape)
        flags = [rows[name].astype(np.float32) for name in ("terminated", "truncated")]
        parts = [rows["obs"], action, rows["reward"], rows["next_obs"], *flags]
        return tuple(torch.from_numpy(np.ascontiguousarray(part)).to(self.device or "cpu") for part in parts)

    def append(self, buffer: Any) -> None:
        """Stores the transitions between consecutive samples of each worker."""
        for name in ("stat_train_return", "stat_test_return", "stat_train_steps", "stat_test_steps"):
            setattr(self, name, getattr(buffer, name, getattr(self, name)))
        rows, samples = [], iter(buffer.memory)
        for source, count in getattr(buffer, "sources", None) or [(None, len(buffer.memory))]:
            place = self._episode_of(source)
            rows += [row for _ in range(count) if (row := self._row(place, next(samples))) is not None]
        if rows:
            columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            self._shard.write(Chunk(columns))

    def _episode_of(self, source: Any) -> _Episode:
        key = repr(source)
        if key not in self._sources:
            if len(self._sources) >= MOST_SOURCES:  # of workers that were started again and again
                self._sources = {}
            self._sources[key] = _Episode(len(self._sources))
        return self._sources[key]

    def _row(self, place: _Episode, sample: Any) -> dict[str, Any] | None:
        """The transition that a sample completes; None for the first observation of an episode."""
        action, observation, reward, terminated, truncated, _ = sample
        following = self.spec.layout.read(observation)[0][0]
        before, place.last = place.last, None if terminated or truncated else following
        if before is None or action is None:
            place.episode, place.step = place.episode + 1, 0
            return None
        row = {
            "obs": before,
            "action": np.asarray(action, np.float32).reshape(self.spec.action_size),
            "reward": np.float32(reward),
            "next_obs": following,
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "version": np.int32(0),
            "env": np.uint16(place.env),
            "episode": np.int32(place.episode),
            "step": np.int32(place.step),
        }
        place.step += 1
        return row

    def state_dict(self) -> dict[str, Any]:
        """Everything but the stored rows."""
        sources = {key: (place.env, place.episode, place.step, place.last) for key, place in self._sources.items()}
        return {"generator": self._rng.bit_generator.state, "sources": sources}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["generator"]
        self._sources = {key: _Episode(*place) for key, place in state["sources"].items()}
