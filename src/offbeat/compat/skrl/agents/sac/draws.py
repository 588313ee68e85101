"""Batches for updates, from our replay or from a user's own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offbeat.compat.skrl.memories.random import RandomRows
from offbeat.errors import UsageError
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import UniformReplay
from offbeat.types import Batches

NAMES = ("observations", "states", "actions", "rewards", "next_observations", "next_states", "terminated")


class Draws:
    """Draws from the memory: by our replay from a `RandomMemory`, by its own `sample` from any other.

    rng: of the rows, where our replay draws. stack: several arrays of the memory as one. alive: 1 where flags are
    false, in the learner's precision.
    """

    def __init__(
        self,
        memory: Any,
        rng: np.random.Generator,
        dtype: type[np.floating],
        stack: Callable[[Sequence[Any]], Any],
        alive: Callable[[Any], Any],
    ) -> None:
        self._memory, self._rng, self._dtype, self._stack, self._alive = memory, rng, dtype, stack, alive
        self._is_ours = isinstance(memory, RandomRows) and type(memory).sample is RandomRows.sample
        self._replay: UniformReplay | None = None
        self._made_for: tuple[Shard, int, float] | None = None

    def __call__(self, count: int, batch_size: int, gamma: float) -> Batches:
        """Batches for `count` updates. With fewer rows than a batch in memory, rows are in a batch several times."""
        if not self._is_ours:
            return self._sampled(count, batch_size, gamma)
        if not len(self._memory):
            raise UsageError("update: the memory is empty; record a transition first")
        wanted = self._memory.shard, batch_size, gamma
        if self._replay is None or self._made_for != wanted:
            self._replay, self._made_for = self._open(*wanted), wanted
        return self._replay.draw(self._rng, count)

    def _open(self, shard: Shard, batch_size: int, gamma: float) -> UniformReplay:
        settings = ReplaySettings(shard.capacity, batch_size, gamma=gamma, dtype=self._dtype)
        replay = UniformReplay(shard.schema, settings, replacement=self._memory.replacement)
        replay.attach(shard)
        return replay

    def _sampled(self, count: int, batch_size: int, gamma: float) -> Batches:
        """The batches of a user's own memory, in the order of `NAMES`."""
        samples = [self._memory.sample(names=list(NAMES), batch_size=batch_size)[0] for _ in range(count)]
        stacked = [None if column[0] is None else self._stack(column) for column in zip(*samples, strict=True)]
        obs, states, actions, rewards, next_obs, next_states, terminated = stacked
        missing = [name for name, each in zip(NAMES, stacked, strict=True) if each is None and "states" not in name]
        if missing:
            raise UsageError(f"the memory's sample gave nothing for {missing[0]!r}; return a tensor for each name")
        assert rewards is not None
        assert terminated is not None
        shape = rewards.shape[:2]
        columns: dict[str, Any] = {"obs": obs, "action": actions, "next_obs": next_obs}
        columns |= {"reward": rewards.reshape(shape)}
        columns |= {"discount": gamma * self._alive(terminated).reshape(shape)}
        if states is not None:
            columns |= {"state": states, "next_state": next_states}
        return Batches(columns, np.zeros(tuple(shape), np.int64))
