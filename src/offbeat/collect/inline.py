"""A collector in the learner's own process: each poll is one vector step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offbeat.collect.rollout import Moved, advance
from offbeat.envs.vector import Vector
from offbeat.errors import OffbeatError, UsageError
from offbeat.policies import Policy
from offbeat.references import name_of
from offbeat.types import Array, Chunk, Observation, Schema, Weights

Shaping = Callable[[Array, int, int], Array]
"""(reward (n,), rows made so far, total_steps) -> reward (n,)"""


MOST_ENVIRONMENTS = 1 << 16
"""Rows name their environment in 16 bits."""


class Inline:
    """Steps `vector` with `policy` and hands on the rows that `schema` asks for, in the environments' order.

    The first `random_steps` rows, over all environments, act uniformly. Environments are reset at the first poll, so
    that `restore` need not undo a reset. Columns may share memory with later chunks: copy before writing to them.
    """

    def __init__(
        self,
        vector: Vector,
        policy: Policy,
        schema: Schema,
        rng: np.random.Generator,
        *,
        random_steps: int = 0,
        reward_shaping: Shaping | None = None,
        total_steps: int = 0,
    ) -> None:
        if vector.num_envs > MOST_ENVIRONMENTS:
            raise UsageError(f"num_envs={vector.num_envs} is more than one collector's {MOST_ENVIRONMENTS}; use fewer")
        self._vector, self._policy, self._schema, self._rng = vector, policy, schema, rng
        self._random_steps, self._shaping, self._total_steps = random_steps, reward_shaping, total_steps
        known = Schema.transitions(vector.spec).names
        self._extras = [each for each in schema if each.name not in known]
        self._env = np.arange(vector.num_envs).astype(np.uint16)
        self._version = np.zeros(vector.num_envs, np.int32)
        self._carry = policy.initial_carry(vector.num_envs)
        self._observation: Observation | None = None
        self.rows = 0

    @property
    def num_envs(self) -> int:
        return self._vector.num_envs

    @property
    def rebuilds(self) -> bool:
        return self._vector.rebuilds

    def load(self, weights: Weights, version: int) -> None:
        """New weights for the policy; rows from here on bear this version."""
        self._policy.load(weights)
        self._version = np.full(self._vector.num_envs, version, np.int32)

    def poll(self, timeout: float = 0.0) -> Chunk:
        """One vector step. An in-process collector never waits, so `timeout` has nothing to bound."""
        before = self._observation if self._observation is not None else self._vector.reset()
        random_rows = max(0, self._random_steps - self.rows)
        moved = advance(
            self._vector, self._policy, before, self._carry, self._rng, random_rows, need_extras=bool(self._extras)
        )
        self._observation, self._carry = moved.step.observation, moved.carry
        columns = self._columns(before, moved)
        chunk = Chunk(columns, sequence=self.rows, finished=moved.step.finished)
        self.rows += len(columns["reward"])
        return chunk

    def _columns(self, before: Observation, moved: Moved) -> dict[str, Array]:
        step = moved.step
        columns = {
            "obs": before.vector,
            "action": moved.action,
            "reward": step.reward,
            "terminated": step.terminated.astype(np.float32),
            "truncated": step.truncated,
            "next_obs": step.next.vector,
            "version": self._version,
            "env": self._env,
            "episode": step.episode.astype(np.int32),
            "step": step.step.astype(np.int32),
        }
        if before.state.size:
            columns["state"], columns["next_state"] = before.state, step.next.state
        for name, image in before.images.items():
            columns[f"obs/{name}"], columns[f"next_obs/{name}"] = image, step.next.images[name]
        for each in self._extras:
            columns[each.name] = np.asarray(moved.extras[each.name], each.dtype)
        if np.count_nonzero(step.valid) < len(step.valid):
            columns = {name: column[step.valid] for name, column in columns.items()}
        reward = columns["reward"] if self._shaping is None else self._shaped(columns["reward"])
        columns["reward"] = reward.astype(np.float32)
        return columns

    def _shaped(self, reward: Array) -> Array:
        assert self._shaping is not None
        name = name_of(self._shaping) or getattr(self._shaping, "__qualname__", repr(self._shaping))
        try:
            shaped = np.asarray(self._shaping(reward.copy(), self.rows, self._total_steps))
        except Exception as error:
            raise OffbeatError(f"reward_shaping {name} raised {type(error).__name__}: {error}") from error
        rule = f"it must return {len(reward)} finite numbers, shape {reward.shape}, that fit into float32"
        if shaped.shape != reward.shape or shaped.dtype.kind not in "biuf":
            raise OffbeatError(
                f"reward_shaping {name} returned shape {shaped.shape} of {shaped.dtype} at step {self.rows}; {rule}"
            )
        if not (np.abs(shaped) <= np.finfo(np.float32).max).all():
            raise OffbeatError(
                f"reward_shaping {name} made {shaped.tolist()} of {reward.tolist()} at step {self.rows}; {rule}"
            )
        return shaped

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Environments, carry and rows so far; the generator and the weights are saved with the learner."""
        arrays, values = self._vector.snapshot()
        return {"carry": self._carry, **{f"vector/{name}": array for name, array in arrays.items()}}, {
            "rows": self.rows,
            "vector": values,
        }

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        """Goes on from a snapshot; a sentence for whatever is not exact."""
        prefix = "vector/"
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        self._observation, sentences = self._vector.restore(own, values["vector"])
        self._carry, self.rows = arrays["carry"], values["rows"]
        return sentences

    def close(self) -> None:
        self._vector.close()
