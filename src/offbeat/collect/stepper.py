"""Vector steps in, stored rows out: the part of collecting that every collector has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from offbeat.collect.shaping import Shaping, shape_reward
from offbeat.collect.step import VectorStep, advance
from offbeat.envs.vector import Vector
from offbeat.errors import UsageError
from offbeat.masks import USUAL_KEY
from offbeat.policies import Policy
from offbeat.replay.block import NO_COLUMNS, Block
from offbeat.replay.stores import Writer
from offbeat.trace import NO_TRACE, Trace
from offbeat.types import Array, Chunk, Observation, Schema, Step, select_prefix
from offbeat.weights.publication import Publication

MAX_ENVIRONMENTS = 1 << 16
"""Rows store the number of their environment in 16 bits."""

UNLIMITED = 1 << 62
_FILLED = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "episode", "step")


def _ignore(sentence: str) -> None:
    pass


class Stepper:
    """Steps `vector` with `policy`, and writes the rows that `schema` names through `writer`, in environment order.

    The first `random_steps` rows, over all environments, act uniformly at random; the state of a `recurrent` policy
    advances in them, too. Environments are reset at the first step, so that `restore` need not undo a reset. A chunk's
    columns are read-only. worker, boot: the key of its chunks. first_env: the number of the first environment.
    other_rows: rows that other workers have made, as far as is known. note: tells the user something.
    """

    def __init__(
        self,
        vector: Vector,
        policy: Policy,
        schema: Schema,
        writer: Writer,
        rng: np.random.Generator,
        *,
        random_steps: int = 0,
        recurrent: bool = False,
        reward_shaping: Shaping | None = None,
        total_steps: int = 0,
        first_env: int = 0,
        worker: int = 0,
        boot: int = 0,
    ) -> None:
        if first_env + vector.num_envs > MAX_ENVIRONMENTS:
            raise UsageError(f"num_envs={first_env + vector.num_envs} is more than {MAX_ENVIRONMENTS}; use fewer")
        self.vector, self._policy, self.writer, self._rng = vector, policy, writer, rng
        self.trace: Trace = NO_TRACE
        self.note: Callable[[str], None] = _ignore
        self._random_steps, self._shaping, self._total_steps = random_steps, reward_shaping, total_steps
        self.first_env, self._worker, self._boot = first_env, worker, boot
        known = Schema.transitions(vector.spec).names
        self._extras = [each for each in schema if each.name not in known]
        self._need_policy = bool(self._extras) or recurrent
        self._block = Block(schema, vector.num_envs)
        columns = self._block.columns
        columns["env"][...] = first_env + np.arange(vector.num_envs)
        self._filled = [columns[name] for name in _FILLED]
        self._states = [columns[name] for name in ("state", "next_state") if vector.spec.state_size]
        self._masks = [columns[name] for name in ("mask", "next_mask") if vector.spec.mask_size]
        self._carry = policy.initial_carry(vector.num_envs)
        self._observation: Observation | None = None
        self.other_rows, self.version = 0, 0

    @property
    def num_envs(self) -> int:
        return self.vector.num_envs

    def load(self, publication: Publication) -> None:
        """Loads weights into the policy; rows from here on carry their version."""
        self._policy.load(publication.weights)
        self._block.columns["version"][...] = self.version = publication.version

    def begin(self, episode: int) -> Observation:
        """Begins this episode in every environment; called where no episode is being played yet."""
        self._observation = observation = self.vector.reset(episode)
        if self.vector.unused_mask:
            self.note(
                f"{self.vector.spec.name} gives a mask of allowed actions, info[{USUAL_KEY!r}], but mask_key is not "
                f"set, so the policy also takes actions that the mask forbids. To take allowed actions only, train "
                f"with mask_key={USUAL_KEY!r} (--mask-key {USUAL_KEY})"
            )
        return observation

    def ready(self, allowed: int) -> bool:
        """Whether a vector step may be made: at most `allowed` rows are made, and the store has room.

        A rollout that was begun is completed, unless `allowed` is negative.
        """
        writer = self.writer
        if writer.rows > allowed and (allowed < 0 or writer.may_change_weights):
            return False
        return writer.ready(UNLIMITED, 0)

    def step(self, before_write: Callable[[Chunk, Step], None] | None = None) -> Chunk:
        """Makes one vector step and stores its rows. before_write: called when they are known and not stored yet."""
        before, writer = self._observation or self.begin(0), self.writer
        rows = writer.rows
        number = rows + self.other_rows
        taken = advance(
            self.vector,
            self._policy,
            before,
            self._carry,
            self._rng,
            max(0, self._random_steps - number),
            self._need_policy,
            number,
            self.trace,
        )
        step = taken.step
        self._observation, self._carry = step.observation, taken.carry
        with self.trace("write"):
            valid = step.valid if 0 in step.valid.tobytes() else None
            chunk = self.chunk(before, taken, rows, valid)
            if before_write is not None:
                before_write(chunk, step)
            for fault in step.faults:  # the episode of a restarted environment ended at its last good step
                writer.cut(self.first_env + fault.env)
            writer.write(chunk, valid, self.version)
        return chunk

    def chunk(self, before: Observation, taken: VectorStep, sequence: int, valid: Array | None = None) -> Chunk:
        """The rows of the vector step that acted on `before`; later steps do not change them.

        valid (N,) bool: the environments that gave a row; None for all.
        """
        step = taken.step
        # One by one: with one environment, a loop over names would take twice as long.
        obs, action, reward, next_obs, terminated, truncated, episode, number = self._filled
        obs[...] = before.vector
        action[...] = taken.action
        reward[...] = step.reward if self._shaping is None else self._shaped(self._shaping, step, sequence)
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
        beside = self._unpacked(before, taken, valid) if self._extras or before.images else NO_COLUMNS
        if step.finished:  # otherwise no flag is set, and the columns stay False
            terminated[...] = step.terminated
            truncated[...] = step.truncated
        rows = self._block.rows(valid, beside)
        if step.finished:
            terminated[...] = truncated[...] = False
        return Chunk(rows, sequence, step.finished, 1, self._worker, self._boot)

    def _unpacked(self, before: Observation, taken: VectorStep, valid: Array | None) -> dict[str, Array]:
        """Puts packed extras into the rows; returns the columns beside them: images, and the other extras."""
        beside = {}
        for name, image in before.images.items():
            beside[f"obs/{name}"], beside[f"next_obs/{name}"] = image, taken.step.next.images[name]
        for each in self._extras:
            value, shape = np.asarray(taken.extras[each.name], each.dtype), (self.num_envs, *each.shape)
            if value.shape != shape:
                raise ValueError(f"the policy's {each.name!r} has shape {value.shape}; the schema asks for {shape}")
            if each.name in self._block.columns:
                self._block.columns[each.name][...] = value
            else:
                beside[each.name] = value
        return beside if valid is None else {name: column[valid] for name, column in beside.items()}

    def _shaped(self, shaping: Shaping, step: Step, sequence: int) -> Array:
        return shape_reward(shaping, step.reward, step.valid, sequence + self.other_rows, self._total_steps)

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Environments, carry and the number of rows; the generator and the weights are saved elsewhere."""
        arrays, values = self.vector.snapshot()
        return {"carry": self._carry, **{f"vector/{name}": array for name, array in arrays.items()}}, {
            "rows": self.writer.rows,
            "vector": values,
        }

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        """Continues from a snapshot; a sentence for whatever is not exact."""
        self._observation, sentences = self.vector.restore(select_prefix(arrays, "vector/"), values["vector"])
        self._carry = arrays["carry"]
        self.writer.continue_at(values["rows"])
        return sentences

    def close(self) -> None:
        self.vector.close()


def make_stepper(
    make_vector: Callable[[], Vector],
    make_policy: Callable[[], Policy],
    schema: Schema,
    writer: Writer,
    rng: np.random.Generator,
    **options: Any,
) -> Stepper:
    """Makes the environments and the policy of a stepper, too. options: as for `Stepper`."""
    return Stepper(make_vector(), make_policy(), schema, writer, rng, **options)
