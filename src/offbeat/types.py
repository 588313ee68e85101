"""The values that travel along the data's path. Shapes are documented here, once.

B batch, T time, N environments, R rows, A action size, O observation size, S privileged state size, E critics.
Everywhere except inside an environment, Box actions are in [-1, 1], and Discrete, MultiDiscrete and MultiBinary ones
are indices from 0. Rewards are what the environment paid, after shaping. K is the size of a mask (see `masks`), 0 where
there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offbeat import masks
from offbeat.errors import EnvironmentFault
from offbeat.layout import Layout, Leaf

Array = npt.NDArray[Any]
Weights = Mapping[str, Array]
"""Flat names such as `actor/0/weight` to arrays: weights (in, out), critics (E, in, out), normalisers beside them."""
Metrics = dict[str, float]


@dataclass(frozen=True)
class EnvSpec:
    """What a policy, a replay and a learner need to know of an environment, without the environment.

    action_low, action_high: (A,) the environment's own bounds. action_shape, action_dtype: what `step` is given.
    choices: how many Discrete actions there are, or None; actions are then their indices 0..choices-1, with A = 1, and
    `action_low` is what the environment calls the first one.
    branches: how many choices each of the A independent actions of a MultiDiscrete space has (MultiBinary: 2 each), in
    the order of the flattened `action_shape`; () for every other space. Actions are then float32 indices (..., A), that
    of branch i in 0..branches[i]-1, and `action_low` (A,) is what the environment calls the first one of each.
    state: layout of the privileged state that only the critic sees, or None; `state_from` is "observation" (the key was
    taken out of `layout`) or "info". mask_key, mask_from: the same for the mask of allowed actions. max_episode_steps:
    the limit after which an episode is truncated, if any.
    """

    name: str
    layout: Layout
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action_shape: tuple[int, ...]
    action_dtype: str = "float32"
    state_key: str | None = None
    state_from: str | None = None
    state: Layout | None = None
    max_episode_steps: int | None = None
    choices: int | None = None
    branches: tuple[int, ...] = ()
    mask_key: str | None = None
    mask_from: str | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EnvSpec:
        """The inverse of `to_json`."""

        def layout(part: Mapping[str, Any]) -> Layout:
            leaves = ({**leaf, "path": tuple(leaf["path"]), "shape": tuple(leaf["shape"])} for leaf in part["leaves"])
            return Layout(tuple(Leaf(**leaf) for leaf in leaves))

        tuples = {name: tuple(values[name]) for name in ("action_low", "action_high", "action_shape")}
        tuples["branches"] = tuple(values.get("branches", ()))  # specs that were saved before there were any have none
        state = None if values["state"] is None else layout(values["state"])
        return cls(**{**values, **tuples, "layout": layout(values["layout"]), "state": state})

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def observation_size(self) -> int:
        return self.layout.size

    @property
    def action_size(self) -> int:
        return len(self.action_low)

    @property
    def state_size(self) -> int:
        return self.state.size if self.state is not None else 0

    @property
    def counts(self) -> tuple[int, ...]:
        """How many choices each action has: `branches`, or (choices,); () for Box actions."""
        return self.branches if self.choices is None else (self.choices,)

    @property
    def mask_size(self) -> int:
        return 0 if self.mask_key is None else sum(self.counts)

    def random_actions(self, rng: np.random.Generator, count: int, mask: Array | None = None) -> Array:
        """Uniform actions (count, A), float32; with a mask (count, K), among those that it allows."""
        if mask is not None:
            return masks.draw(rng, mask, self.counts)
        if self.choices is not None:
            return rng.integers(self.choices, size=(count, 1)).astype(np.float32)
        if self.branches:
            return rng.integers(self.branches, size=(count, self.action_size)).astype(np.float32)
        return rng.uniform(-1.0, 1.0, (count, self.action_size)).astype(np.float32)

    def to_environment(self, action: Array) -> Array:
        """Actions (..., A) to the environment's own (..., *action_shape), in its dtype.

        Those in [-1, 1] are scaled to the bounds, and beyond goes to the bound; indices are counted from `action_low`.
        """
        if self.choices is not None:
            return action[..., 0].astype(self.action_dtype) + np.asarray(self.action_low[0], self.action_dtype)
        if self.branches:
            named = action.astype(self.action_dtype) + np.asarray(self.action_low, self.action_dtype)
            return named.reshape(action.shape[:-1] + self.action_shape)
        low, high, centre, half = self._scaling
        # Clipping the result, not the action: rounding in the scaling then cannot leave the bounds either.
        scaled = action.astype(np.float64)
        scaled *= half
        scaled += centre
        scaled = np.minimum(np.maximum(scaled, low, out=scaled), high, out=scaled)
        return scaled.astype(self.action_dtype).reshape(action.shape[:-1] + self.action_shape)

    @cached_property
    def _scaling(self) -> tuple[Array, Array, Array, Array]:
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        return low, high, 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low

    def from_environment(self, action: Array) -> Array:
        """The inverse of `to_environment`: (..., *action_shape) to (..., A) in [-1, 1] or indices, float32."""
        if self.choices is not None:
            return (np.asarray(action)[..., None] - self.action_low[0]).astype(np.float32)
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        lead = np.shape(action)[: np.ndim(action) - len(self.action_shape)]
        flat = np.asarray(action, np.float64).reshape(*lead, self.action_size)
        if self.branches:
            return (flat - low).astype(np.float32)
        return (2.0 * (flat - low) / (high - low) - 1.0).astype(np.float32)


@dataclass(frozen=True)
class Observation:
    """What N environments show. vector (N, O), state (N, S): float32, S = 0 if there is none. images: (N, ...).

    mask (N, K) bool: the actions that are allowed; None where there is no mask.
    """

    vector: Array
    state: Array
    images: Mapping[str, Array] = field(default_factory=dict)
    mask: Array | None = None


@dataclass(frozen=True)
class Episode:
    """A finished episode: which environment and episode, what it returned (unshaped), how long it was.

    success: what `is_success` or `success` of its final info says; None where there is neither. info: that final info.
    """

    env: int
    episode: int
    total_reward: float
    length: int
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Contained:
    """A fault that ended an environment's episode and not the run. env: its row in the vector."""

    env: int
    kind: Literal["raised", "hung", "not finite"]
    error: EnvironmentFault


@dataclass(frozen=True)
class Step:
    """One step of N environments.

    observation: to act on next (the first of a new episode where one ended). next: the true successor of what was acted
    on (the final observation where an episode ended). reward (N,) float64; terminated, truncated (N,) bool.
    valid (N,) bool: False where the call made no transition: it only reset an environment, or its step faulted.
    episode, step (N,) int64: the episode that the row belongs to and its place in it, from 0.
    finished: the episodes that ended, one for each row where a flag is set: where it is empty, no flag is.
    faults: what was contained since the step before; a reset that faulted leaves the row of its step valid.
    """

    observation: Observation
    next: Observation
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    episode: Array
    step: Array
    finished: tuple[Episode, ...] = ()
    faults: tuple[Contained, ...] = ()


@dataclass(frozen=True)
class Field:
    """One column of a row: name, shape of one entry, dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def packed(self) -> bool:
        return self.dtype in ("float32", "bool") or not self.shape


@dataclass(frozen=True)
class Schema:
    """The fields of a row, from which chunk, shard and segment are built.

    float32 and bool fields and single numbers of any dtype are packed side by side into one `row`, so that a batch is
    one gather and a write one copy; images and other arrays stand beside it.
    """

    fields: tuple[Field, ...]

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __getitem__(self, name: str) -> Field:
        return next(each for each in self.fields if each.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.fields)

    @property
    def beside(self) -> tuple[Field, ...]:
        return tuple(each for each in self.fields if not each.packed)

    @property
    def row(self) -> np.dtype[Any]:
        """The packed fields as one structured dtype; schemas with the same fields share the object."""
        return _row(self.fields)

    @classmethod
    def transitions(cls, spec: EnvSpec, extras: tuple[Field, ...] = ()) -> Schema:
        """Self-contained transition rows for an environment; images stand in their own dtype beside the vectors."""
        observation, state = (spec.observation_size,), (spec.state_size,)
        fields = [
            Field("obs", observation, "float32"),
            Field("action", (spec.action_size,), "float32"),
            Field("reward", (), "float32"),
            Field("next_obs", observation, "float32"),
        ]
        if spec.state_size:
            fields += [Field("state", state, "float32"), Field("next_state", state, "float32")]
        if spec.mask_size:
            fields += [Field(name, (spec.mask_size,), "bool") for name in ("mask", "next_mask")]
        for leaf in spec.layout.images:
            fields += [Field(f"{when}/{leaf.name}", leaf.shape, leaf.dtype) for when in ("obs", "next_obs")]
        fields += [
            Field("terminated", (), "bool"),
            Field("truncated", (), "bool"),
            Field("version", (), "int32"),
            Field("env", (), "uint16"),
            Field("episode", (), "int32"),
            Field("step", (), "int32"),
        ]
        return cls(tuple(fields) + extras)


@cache
def _row(fields: tuple[Field, ...]) -> np.dtype[Any]:
    """The packed fields side by side: the widest numbers first, each aligned to its own size."""
    packed = [each for each in fields if each.packed]
    packed.sort(key=lambda each: -np.dtype(each.dtype).itemsize)
    formats = [np.dtype((each.dtype, each.shape)) for each in packed]
    ends = np.cumsum([0, *(each.itemsize for each in formats)])
    whole = max([4, *(np.dtype(each.dtype).itemsize for each in packed)])
    return np.dtype(
        {
            "names": [each.name for each in packed],
            "formats": formats,
            "offsets": ends[:-1].tolist(),
            "itemsize": max(1, -(-int(ends[-1]) // whole)) * whole,
        }
    )


Packed = tuple[np.dtype[Any], bytes | memoryview, int, Mapping[str, Array]]
"""Packed rows: the schema's `row`, that many bytes for each, end to end, how many, and the columns beside them."""


class Columns(Mapping[str, Array]):
    """Packed rows by column, each cut out when it is asked for; read-only."""

    def __init__(self, packed: Packed) -> None:
        self._row, self._data, self._count, self._beside = packed

    def __getitem__(self, name: str) -> Array:
        if name in self._beside:
            return self._beside[name]
        if name not in (self._row.names or ()):
            raise KeyError(name)
        return np.ndarray(self._count, self._row, self._data)[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._row.names or ()
        yield from self._beside

    def __len__(self) -> int:
        return len(self._row.names or ()) + len(self._beside)


@dataclass(slots=True)
class Chunk:
    """Rows in the order in which they were made; `columns[name]` is (R, *field.shape).

    rows: packed, or by column, to be packed where they are written. A row is named (worker, boot, sequence):
    `sequence` is the first row's, the others follow. finished: the episodes that ended in these rows. calls: vector
    steps taken, also those that gave no row. Made in every step, so it is not frozen, which would take five times as
    long.
    """

    rows: Packed | Mapping[str, Array]
    sequence: int = 0
    finished: tuple[Episode, ...] = ()
    calls: int = 1
    worker: int = 0
    boot: int = 0

    @property
    def columns(self) -> Mapping[str, Array]:
        return Columns(self.rows) if isinstance(self.rows, tuple) else self.rows

    def __len__(self) -> int:
        return self.rows[2] if isinstance(self.rows, tuple) else len(next(iter(self.rows.values())))


@dataclass(slots=True)
class Transitions:
    """A batch for an off-policy learner. reward, discount (B,): the n-step sum and gamma^k, 0 after termination.

    obs, next_obs (B, O); action (B, A); state, next_state (B, S). `rows` (B,) int64 names the first row of each. mask,
    next_mask (B, K) bool, or None where there are no masks.
    """

    obs: Array
    action: Array
    reward: Array
    discount: Array
    next_obs: Array
    state: Array
    next_state: Array
    rows: Array
    mask: Array | None = None
    next_mask: Array | None = None
