"""Reads and checks the observations that environments return, and writes them into arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.layout import Layout, Leaf
from offbeat.masks import BadMask, as_mask
from offbeat.types import Array, EnvSpec, Observation


class InvalidValue(ValueError):
    """A value that the spaces do not allow; the caller adds environment, episode and step, and raises a fault."""


class NotFinite(InvalidValue):
    """A number that is not finite, or not finite as float32."""


class LeafReader:
    """Reads one leaf of a layout from one observation or a batch, and checks it against the declared space.

    where: its columns in the vector; unused for images. what: "observation" or the name of the state, for messages.
    """

    def __init__(self, leaf: Leaf, where: slice, batch: tuple[int, ...], what: str) -> None:
        self.leaf, self.where, self.what = leaf, where, what
        self.shape = batch if leaf.kind == "discrete" else batch + leaf.shape
        self.flat = (*batch, leaf.size)
        self._declared = np.dtype(leaf.dtype)
        self.allowed = {self._declared}

    def array(self, raw: Any) -> Array:
        """The leaf's value as an array of the declared shape, in a dtype that casts to the declared one."""
        try:
            for step in self.leaf.path:
                raw = raw[step]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidValue(f"{self.name} is missing: {type(raw).__name__} has no {step!r}") from error
        value = raw if type(raw) is np.ndarray else self._converted(raw)
        if value.shape != self.shape:
            raise InvalidValue(
                f"{self.name} has shape {value.shape}, but its space declares {self.shape}: {short_repr(value)}"
            )
        if value.dtype not in self.allowed:
            if not np.can_cast(value.dtype, self._declared, "same_kind"):
                raise InvalidValue(
                    f"{self.name} has dtype {value.dtype}, which cannot be cast to the declared {self._declared} "
                    f"(casting='same_kind'): {short_repr(value)}"
                )
            self.allowed.add(value.dtype)
        return value

    def write(self, raw: Any, vector: Array, rows: int | slice) -> None:
        """Writes the leaf into its columns of `vector` (N, O): one row, or all rows of a batch."""
        value = self.array(raw)
        if self.leaf.kind == "discrete":
            vector[rows, self.where] = self._one_hot(value)
        else:
            vector[rows, self.where] = value.reshape(self.flat)

    @property
    def name(self) -> str:
        return f"{self.what} {self.leaf.name!r}" if self.leaf.path else self.what

    def _converted(self, raw: Any) -> Array:
        """Converts lists and Python numbers to an array; integers may convert to an unsigned dtype, and bools count."""
        try:
            value = np.asarray(raw)
        except ValueError as error:
            raise InvalidValue(f"{self.name} is not an array of numbers: {short_repr(raw)}") from error
        if value.dtype.kind not in "biuf":
            raise InvalidValue(f"{self.name} is a {type(raw).__name__}, not an array of numbers: {short_repr(raw)}")
        if value.dtype.kind in "iu" and self._declared.kind in "iu":
            cast = value.astype(self._declared)
            return cast if np.array_equal(cast, value) else value
        return value

    def _one_hot(self, value: Array) -> Array:
        leaf = self.leaf
        if value.dtype.kind not in "iu" or (value < leaf.start).any() or (value >= leaf.start + leaf.size).any():
            raise InvalidValue(
                f"{self.name} is {short_repr(value)}, but its Discrete space allows the integers {leaf.start} to "
                f"{leaf.start + leaf.size - 1}"
            )
        return np.arange(leaf.start, leaf.start + leaf.size) == value[..., None]


class Reader:
    """Reads observations, privileged states and masks of one environment, or of `batch` environments at once.

    `Layout.encode` computes the same vectors without checks.
    """

    def __init__(self, spec: EnvSpec, batch: int | None = None) -> None:
        lead = () if batch is None else (batch,)
        self._spec = spec
        self._vectors = _leaf_readers(spec.layout, lead, "observation")
        self._images = [LeafReader(leaf, slice(0, 0), lead, "observation") for leaf in spec.layout.images]
        self._states = _leaf_readers(spec.state, lead, _state_name(spec)) if spec.state is not None else []
        self._state_in_info = spec.state_from == "info"
        # A fast path for the common case of one flat Box, because reading takes most of a step's time.
        flat = [
            part for part in self._vectors if part.leaf.kind == "box" and part.shape == part.flat and not part.leaf.path
        ]
        self._mask_size = spec.mask_size
        alone = len(flat) == 1 == len(spec.layout.leaves) and not self._states and not self._mask_size
        self._plain = flat[0] if alone else None
        self._size, self._state_size = spec.observation_size, spec.state_size

    def blank(self, rows: int) -> Observation:
        """A new, unfilled batch for `read` to write into."""
        vector, state = np.empty((rows, self._size), np.float32), np.empty((rows, self._state_size), np.float32)
        if not self._images and not self._mask_size:
            return Observation(vector, state)
        images = {part.leaf.name: np.empty((rows, *part.leaf.shape), part.leaf.dtype) for part in self._images}
        return Observation(vector, state, images, np.ones((rows, self._mask_size), bool) if self._mask_size else None)

    def read(self, raw: Any, info: Any, into: Observation, rows: int | slice) -> None:
        """Checks an observation and writes it, without its mask, into `rows` of a batch. Raises InvalidValue."""
        plain = self._plain
        if plain is not None and type(raw) is np.ndarray and raw.shape == plain.shape and raw.dtype in plain.allowed:
            into.vector[rows] = raw
            return
        for part in self._vectors:
            part.write(raw, into.vector, rows)
        for part in self._images:
            into.images[part.leaf.name][rows] = part.array(raw)
        if self._states:
            source = self._from_info(info) if self._state_in_info else raw
            for part in self._states:
                part.write(source, into.state, rows)

    def read_mask(self, raw: Any, info: Any, into: Observation, row: int, terminated: bool = False) -> None:
        """Checks one environment's mask, if masks are used, and writes it into its row. Raises InvalidValue.

        terminated: whether the episode has terminated; then the mask may allow nothing, or be missing.
        """
        if into.mask is None:
            return
        source, key = info if self._spec.mask_from == "info" else raw, self._spec.mask_key
        if not isinstance(source, dict) or key not in source:
            if terminated:
                return  # `blank` already allows all actions
            where = "info" if self._spec.mask_from == "info" else "the observation"
            keys = ", ".join(repr(name) for name in source) if isinstance(source, dict) else type(source).__name__
            raise InvalidValue(
                f"{where} has no {key!r} (its keys: {keys or 'none'}), but mask_key names it as the action mask"
            )
        try:
            into.mask[row] = as_mask(source[key], self._spec.counts, terminated)
        except BadMask as error:
            raise InvalidValue(f"{mask_name(self._spec)} {error}") from error

    def check_finite(self, batch: Observation, row: int) -> None:
        """Raises NotFinite if a row of a batch is not finite."""
        own = Observation(batch.vector[row : row + 1], batch.state[row : row + 1])
        if not is_finite(own):
            raise NotFinite(first_not_finite(own, self._spec)[1])

    @staticmethod
    def clear(batch: Observation, row: int) -> None:
        """Sets a row of a batch to zeros, and its mask to all allowed."""
        for array in (batch.vector, batch.state, *batch.images.values()):
            array[row] = 0
        if batch.mask is not None:
            batch.mask[row] = True

    def _from_info(self, info: Any) -> Any:
        key = self._spec.state_key
        if not isinstance(info, dict) or key not in info:
            keys = ", ".join(repr(name) for name in info) if isinstance(info, dict) else type(info).__name__
            raise InvalidValue(
                f"info has no {key!r} (its keys: {keys or 'none'}), but state_key names it as the privileged state"
            )
        return info[key]


def all_finite(array: Array) -> bool:
    """Whether every number is finite. Counting takes half the time of `.all()` for small arrays."""
    return np.count_nonzero(np.isfinite(array)) == array.size


def is_finite(observation: Observation) -> bool:
    """Whether a whole batch is finite. One vectorised test; `first_not_finite` then finds the value."""
    return all_finite(observation.vector) and (not observation.state.size or all_finite(observation.state))


def first_not_finite(observation: Observation, spec: EnvSpec) -> tuple[int, str]:
    """The row of the first value that is not finite, and a message about it."""
    pairs = [(observation.vector, spec.layout, "observation")]
    if spec.state is not None:
        pairs.append((observation.state, spec.state, _state_name(spec)))
    for array, layout, what in pairs:
        for row, column in np.argwhere(~np.isfinite(array)):
            for part in _leaf_readers(layout, (), what):
                if part.where.start <= column < part.where.stop:
                    at = np.unravel_index(column - part.where.start, part.leaf.shape)
                    element = f", element {[int(index) for index in at]}," if at else ""
                    return int(row), f"{part.name}{element} is {array[row, column]} as float32; it must be finite"
    raise ValueError("every value is finite")


def copy_observation(observation: Observation) -> Observation:
    """A deep copy of an observation."""
    images = {name: image.copy() for name, image in observation.images.items()}
    mask = None if observation.mask is None else observation.mask.copy()
    return Observation(observation.vector.copy(), observation.state.copy(), images, mask)


def mask_name(spec: EnvSpec) -> str:
    return f"the mask {'info' if spec.mask_from == 'info' else 'observation'}[{spec.mask_key!r}]"


def _state_name(spec: EnvSpec) -> str:
    return f"state info[{spec.state_key!r}]" if spec.state_from == "info" else "state"


def _leaf_readers(layout: Layout, lead: tuple[int, ...], what: str) -> list[LeafReader]:
    parts, start = [], 0
    for leaf in layout.vectors:
        parts.append(LeafReader(leaf, slice(start, start + leaf.size), lead, what))
        start += leaf.size
    return parts


def short_repr(value: Any, limit: int = 200) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
