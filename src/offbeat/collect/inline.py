"""A collector in the learner's own process: each poll is one vector step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offbeat.collect.rollout import Moved, advance
from offbeat.envs.vector import Vector
from offbeat.errors import CheckpointError, OffbeatError, UsageError
from offbeat.masks import USUAL_KEY
from offbeat.policies import Policy
from offbeat.references import name_of
from offbeat.replay.block import NOTHING, Block
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Chunk, Observation, Schema, Step, Weights

Shaping = Callable[[Array, int, int], Array]
"""(reward (n,), rows made so far, total_steps) -> reward (n,)"""


MOST_ENVIRONMENTS = 1 << 16
"""Rows name their environment in 16 bits."""

_FILLED = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "episode", "step")


def _unheard(sentence: str) -> None:
    pass


class Inline:
    """Steps `vector` with `policy` and hands on the rows that `schema` asks for, in the environments' order.

    The first `random_steps` rows, over all environments, act uniformly. Environments are reset at the first poll, so
    that `restore` need not undo a reset. A chunk's columns are read-only. first_env: the number of the first one, where
    other collectors have environments before it; `others` is how many rows these have made, as far as is known.
    `note` is where to say what a person should know.
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
        first_env: int = 0,
    ) -> None:
        if first_env + vector.num_envs > MOST_ENVIRONMENTS:
            raise UsageError(f"num_envs={first_env + vector.num_envs} is more than {MOST_ENVIRONMENTS}; use fewer")
        self._vector, self._policy, self._schema, self._rng = vector, policy, schema, rng
        self.trace: Trace = NO_TRACE
        self.note: Callable[[str], None] = _unheard
        self._random_steps, self._shaping, self._total_steps = random_steps, reward_shaping, total_steps
        known = Schema.transitions(vector.spec).names
        self._extras = [each for each in schema if each.name not in known]
        self._block = Block(schema, vector.num_envs)
        columns = self._block.columns
        columns["env"][...] = first_env + np.arange(vector.num_envs)
        self._filled = [columns[name] for name in _FILLED]
        self._states = [columns[name] for name in ("state", "next_state") if vector.spec.state_size]
        self._masks = [columns[name] for name in ("mask", "next_mask") if vector.spec.mask_size]
        self._carry = policy.initial_carry(vector.num_envs)
        self._observation: Observation | None = None
        self.rows = self.others = 0

    @property
    def num_envs(self) -> int:
        return self._vector.num_envs

    @property
    def rebuilds(self) -> bool:
        return self._vector.rebuilds

    def load(self, weights: Weights, version: int) -> None:
        """New weights for the policy; rows from here on bear this version."""
        self._policy.load(weights)
        self._block.columns["version"][...] = version

    def begin(self, episode: int) -> None:
        """Begins this episode in every environment, where no episode is being played yet."""
        self._observation = self._vector.reset(episode)
        if self._vector.unused_mask:
            self.note(
                f"{self._vector.spec.name} gives a mask of allowed actions, info[{USUAL_KEY!r}], and no mask_key names "
                f"it: actions that it forbids are taken like others. To take only those that it allows, train with "
                f"mask_key={USUAL_KEY!r} (--mask-key {USUAL_KEY})"
            )

    def poll(self) -> Chunk:
        """One vector step."""
        before, moved = self.advance()
        return self.chunk(before, moved)

    def advance(self) -> tuple[Observation, Moved]:
        """One vector step: what was acted on, and what came of it."""
        if self._observation is None:
            self.begin(0)
        before = self._observation
        assert before is not None
        step = self.rows + self.others
        random_rows = max(0, self._random_steps - step)
        moved = advance(
            self._vector,
            self._policy,
            before,
            self._carry,
            self._rng,
            random_rows,
            bool(self._extras),
            step,
            self.trace,
        )
        self._observation, self._carry = moved.step.observation, moved.carry
        return before, moved

    def chunk(self, before: Observation, moved: Moved) -> Chunk:
        """The rows of the vector step that acted on `before`; later steps leave them as they are."""
        step = moved.step
        kept = step.valid if 0 in step.valid.tobytes() else None
        # One by one: at one environment, a loop over names would take as long again.
        obs, action, reward, next_obs, terminated, truncated, episode, number = self._filled
        obs[...] = before.vector
        action[...] = moved.action
        reward[...] = step.reward if self._shaping is None else self._shaped(step)
        next_obs[...] = step.next.vector
        episode[...] = step.episode
        number[...] = step.step
        if self._states:
            state, next_state = self._states
            state[...] = before.state
            next_state[...] = step.next.state
        if self._masks:
            mask, next_mask = self._masks
            mask[...] = before.mask
            next_mask[...] = step.next.mask
        beside = self._further(before, moved, kept) if self._extras or before.images else NOTHING
        if step.finished:  # else no flag is set, and the columns stay at False
            terminated[...] = step.terminated
            truncated[...] = step.truncated
        rows = self._block.rows(kept, beside)
        if step.finished:
            terminated[...] = truncated[...] = False
        chunk = Chunk(rows, self.rows, step.finished)
        self.rows += rows[2]
        return chunk

    def _further(self, before: Observation, moved: Moved, kept: Array | None) -> dict[str, Array]:
        """Puts the policy's extras into the rows; returns what stands beside them, images and extras alike."""
        beside = {}
        for name, image in before.images.items():
            beside[f"obs/{name}"], beside[f"next_obs/{name}"] = image, moved.step.next.images[name]
        for each in self._extras:
            value, shape = np.asarray(moved.extras[each.name], each.dtype), (self.num_envs, *each.shape)
            if value.shape != shape:
                raise ValueError(f"the policy's {each.name!r} has shape {value.shape}; the schema asks for {shape}")
            if each.name in self._block.columns:
                self._block.columns[each.name][...] = value
            else:
                beside[each.name] = value
        return beside if kept is None else {name: column[kept] for name, column in beside.items()}

    def _shaped(self, step: Step) -> Array:
        """The rewards (N,), shaped where a row is valid."""
        reward = np.array(step.reward, np.float64)
        reward[step.valid] = self._shape(reward[step.valid])
        return reward

    def _shape(self, reward: Array) -> Array:
        assert self._shaping is not None
        name = name_of(self._shaping) or getattr(self._shaping, "__qualname__", repr(self._shaping))
        try:
            shaped = np.asarray(self._shaping(reward.copy(), self.rows + self.others, self._total_steps))
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
        if "collectors" in values:
            made = len(values["collectors"])
            raise CheckpointError(f"the checkpoint was made with collectors={made}, this run has 0; use the same")
        prefix = "vector/"
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        self._observation, sentences = self._vector.restore(own, values["vector"])
        self._carry, self.rows = arrays["carry"], values["rows"]
        return sentences

    def close(self) -> None:
        self._vector.close()
