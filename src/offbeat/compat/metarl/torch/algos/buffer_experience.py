"""A replay buffer with `sample_transitions` as what Offbeat's learner learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from offbeat.errors import UsageError
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.stores import Store, StorePlan
from offbeat.types import Array, Batches, EnvSpec, Schema

_KEYS = ("observations", "actions", "rewards", "terminals", "next_observations")


class BufferExperience:
    """Draws every batch with `sample_transitions(batch_size)`. The buffer is filled and saved elsewhere."""

    wants_td_errors = unfinished = False

    def __init__(
        self, replay_buffer: Any, env_spec: Any, spec: EnvSpec, schema: Schema, settings: ReplaySettings
    ) -> None:
        self.schema, self.shards = schema, dict[str, Shard]()
        self._buffer, self._env_spec, self._spec, self._settings = replay_buffer, env_spec, spec, settings

    def __len__(self) -> int:
        return int(self._buffer.n_transitions_stored)

    def ready(self) -> bool:
        return len(self) > 0

    def plan(self, worker: int, num_envs: int, total_envs: int) -> StorePlan:
        raise UsageError("the replay buffer is filled by the runner's sampler, not by collectors")

    def attach(self, store: Store) -> None:
        raise UsageError("the replay buffer is filled by the runner's sampler, not by collectors")

    def draw(self, rng: np.random.Generator, count: int) -> Batches:
        """The buffer draws with its own generator."""
        size = self._settings.batch_size
        return self.batches([self._buffer.sample_transitions(size) for _ in range(count)])

    def batches(self, samples: list[Mapping[str, Any]]) -> Batches:
        """Sampled transitions, dicts of arrays (B, size), as K batches."""
        if missing := [key for key in _KEYS if key not in samples[0]]:
            raise UsageError(f"sample_transitions gave no {missing[0]!r}; a transition has {', '.join(_KEYS)}")
        stacked = {key: np.stack([np.asarray(each[key]) for each in samples]) for key in _KEYS}
        rewards = stacked["rewards"]
        shape = (len(samples), rewards.size // len(samples))
        going_on = 1.0 - stacked["terminals"].reshape(shape).astype(np.float32)
        columns = {
            "obs": stacked["observations"].astype(np.float32, copy=False).reshape(*shape, -1),
            "action": self._actions(stacked["actions"].reshape(*shape, -1)),
            "reward": rewards.astype(np.float32, copy=False).reshape(shape),
            "discount": (self._settings.gamma * going_on).astype(np.float32),
            "next_obs": stacked["next_observations"].astype(np.float32, copy=False).reshape(*shape, -1),
        }
        return Batches(columns, np.zeros(shape, np.int64))

    def _actions(self, flat: Array) -> Array:
        """Flat actions (K, B, flat_dim) as the learner's: an index, or numbers in [-1, 1]."""
        if self._spec.choices is not None:
            return flat.argmax(-1)[..., None].astype(np.float32)
        return self._spec.from_environment(flat.reshape(*flat.shape[:-1], *self._spec.action_shape))

    def feedback(self, rows: Array, td_errors: Array) -> None:
        """The buffer takes no TD errors."""

    def arrays(self) -> dict[str, Array]:
        return {}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """The runner restores the buffer."""
