"""The data types that pass between environments, collectors, replay and learners, with their shapes.

B batch, T time, N environments, R rows, A action size, O observation size, S privileged state size, E critics.
K is the size of an action mask (see `masks`), 0 without masks. Outside of environments, Box actions are in [-1, 1], and
Discrete, MultiDiscrete and MultiBinary actions are indices from 0. Rewards are the environment's, after shaping.
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
"""Flat names such as `actor/0/weight` to arrays: weights (in, out), critics (E, in, out), and normaliser statistics."""
Metrics = dict[str, float]


def select_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays with names that start with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class EnvSpec:
    """The properties of an environment that policies, replay and learners need.

    action_low, action_high: (A,) the environment's bounds. action_shape, action_dtype: of the action that `step` takes.
    choices: the number of Discrete actions, or None. Actions are then indices 0..choices-1, with A = 1, and
    `action_low` is the environment's own number of the first action.
    branches: the number of choices of each of the A independent actions of a MultiDiscrete space (MultiBinary: 2 each),
    in the order of the flattened `action_shape`; () for every other space. Actions are then float32 indices (..., A),
    branch i in 0..branches[i]-1, and `action_low` (A,) is the environment's own number of the first choice of each.
    state: layout of the privileged state, which only the critic gets, or None. state_from: "observation" (the key is
    not part of `layout`) or "info". mask_key, mask_from: the same for the action mask. max_episode_steps: the number of
    steps after which an episode is truncated, or None.
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
        tuples["branches"] = tuple(values.get("branches", ()))  # absent in old saved specs
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
        """The number of choices of each action: `branches`, or (choices,); () for Box actions."""
        return self.branches if self.choices is None else (self.choices,)

    @property
    def mask_size(self) -> int:
        return 0 if self.mask_key is None else sum(self.counts)

    def random_actions(self, rng: np.random.Generator, count: int, mask: Array | None = None) -> Array:
        """Uniform random actions (count, A), float32; only those that the mask (count, K) allows, if there is one."""
        if mask is not None:
            return masks.sample(rng, mask, self.counts)
        if self.choices is not None:
            return rng.integers(self.choices, size=(count, 1)).astype(np.float32)
        if self.branches:
            return rng.integers(self.branches, size=(count, self.action_size)).astype(np.float32)
        return rng.uniform(-1.0, 1.0, (count, self.action_size)).astype(np.float32)

    def to_environment(self, action: Array) -> Array:
        """Converts actions (..., A) to the environment's format (..., *action_shape), in its dtype.

        Box actions are scaled from [-1, 1] to the bounds and clipped to them; `action_low` is added to indices.
        """
        if self.choices is not None:
            return action[..., 0].astype(self.action_dtype) + np.asarray(self.action_low[0], self.action_dtype)
        if self.branches:
            shifted = action.astype(self.action_dtype) + np.asarray(self.action_low, self.action_dtype)
            return shifted.reshape(action.shape[:-1] + self.action_shape)
        low, high, centre, half = self._scaling
        # Clip the result, not the action: rounding in the scaling could otherwise exceed the bounds.
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
    """Observations of N environments. vector (N, O), state (N, S): float32, S = 0 without a state. images: (N, ...).

    mask (N, K) bool: the allowed actions; None without masks.
    """

    vector: Array
    state: Array
    images: Mapping[str, Array] = field(default_factory=dict)
    mask: Array | None = None


@dataclass(frozen=True)
class Episode:
    """A finished episode: environment, episode number, return (before shaping) and length in steps.

    success: `is_success` or `success` of the final info; None if it has neither. info: the final info.
    """

    env: int
    episode: int
    total_reward: float
    length: int
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class RecoveredFault:
    """A fault that ended an environment's episode but not the run. env: the environment's row in the vector."""

    env: int
    kind: Literal["raised", "hung", "not finite"]
    error: EnvironmentFault


@dataclass(frozen=True)
class Step:
    """One step of N environments.

    observation: the input of the next action (the first observation of a new episode where one ended). next: the true
    next observation of this step (the final observation where an episode ended). reward (N,) float64; terminated,
    truncated (N,) bool. valid (N,) bool: False where there is no transition, because the call only reset the
    environment, or because its step faulted. episode, step (N,) int64: the row's episode and its index there, from 0.
    finished: the episodes that ended, one per row with a flag set; () if no flag is set.
    faults: the faults since the previous step. A fault in a reset leaves the row of the step before it valid.
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
    faults: tuple[RecoveredFault, ...] = ()


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
    """The fields of a row, which define the format of chunks, shards and segments.

    float32 and bool fields and single numbers of any dtype are packed into one `row`, so that reading a batch is one
    gather and a write is one copy. Images and other arrays are `unpacked`: stored as separate columns.
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
    def unpacked(self) -> tuple[Field, ...]:
        return tuple(each for each in self.fields if not each.packed)

    @property
    def row(self) -> np.dtype[Any]:
        """The packed fields as one structured dtype; schemas with equal fields share the dtype object."""
        return _row(self.fields)

    @classmethod
    def transitions(cls, spec: EnvSpec, extras: tuple[Field, ...] = ()) -> Schema:
        """The schema of an environment's transitions; each row includes its next observation."""
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
    """The structured dtype of the packed fields: widest numbers first, each aligned to its own size."""
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
"""Packed rows: the schema's `row` dtype, the rows' bytes, the number of rows, and the unpacked columns."""


class Columns(Mapping[str, Array]):
    """A read-only view of packed rows by column; each column is extracted on access."""

    def __init__(self, packed: Packed) -> None:
        self._row, self._data, self._count, self._unpacked = packed

    def __getitem__(self, name: str) -> Array:
        if name in self._unpacked:
            return self._unpacked[name]
        if name not in (self._row.names or ()):
            raise KeyError(name)
        return np.ndarray(self._count, self._row, self._data)[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._row.names or ()
        yield from self._unpacked

    def __len__(self) -> int:
        return len(self._row.names or ()) + len(self._unpacked)


@dataclass(slots=True)
class Chunk:
    """Rows in the order in which they were collected; `columns[name]` is (R, *field.shape).

    rows: packed, or by column. A row's unique id is (worker, boot, sequence); `sequence` is that of the first row, and
    the following rows count on from it. finished: the episodes that ended in these rows. calls: vector steps taken,
    including those without a row. Not frozen: one is created per step, and a frozen dataclass takes five times as long.
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


@dataclass(frozen=True, slots=True)
class Batches:
    """K batches of B rows each, for K updates in a row.

    columns[name]: (K, B, *field.shape). Transitions have obs, action, reward, discount, next_obs; state and next_state,
    mask and next_mask if the schema has them; and every other field that a policy stored. reward is the n-step sum,
    discount gamma^k, 0 after termination. rows (K, B) int64: the replay index of the first row of each. Batches of
    sequences have their learned steps as rows, and obs and next_obs by step and sequence: see `SequenceReplay`.
    weight (K, B): importance weight of each row in the loss, or None. valid (K, B) bool: rows to use, or None for all.
    """

    columns: Mapping[str, Array]
    rows: Array
    weight: Array | None = None
    valid: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """T consecutive steps of N environments. columns[name]: (T, N, *field.shape). valid (T, N) bool: real rows."""

    columns: Mapping[str, Array]
    valid: Array

    def chunk(self) -> Chunk:
        """The valid rows in the order in which they were collected."""
        return Chunk({name: np.asarray(column)[self.valid] for name, column in self.columns.items()})
