"""Observations from environments, checked and laid out: the one way from what an environment returns to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.layout import Layout, Leaf
from offbeat.masks import BadMask, as_mask
from offbeat.types import Array, EnvSpec, Observation


class Unfit(ValueError):
    """A value that the spaces do not allow, in words; whoever knows where it came from makes a fault of it."""


class NotFinite(Unfit):
    """A number that is not finite, or would not be as float32."""


class Part:
    """One leaf of a layout, read from one observation or from a batch of them, and checked against its declaration.

    where: its columns in the vector; unused for images.
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
            raise Unfit(f"{self.name} is not there: {type(raw).__name__} has no {step!r}") from error
        value = raw if type(raw) is np.ndarray else self._converted(raw)
        if value.shape != self.shape:
            raise Unfit(f"{self.name} has shape {value.shape}, but its space declares {self.shape}: {short(value)}")
        if value.dtype not in self.allowed:
            if not np.can_cast(value.dtype, self._declared, "same_kind"):
                raise Unfit(
                    f"{self.name} has dtype {value.dtype}, which does not cast to the declared {self._declared} "
                    f"without losing its kind: {short(value)}"
                )
            self.allowed.add(value.dtype)
        return value

    def write(self, raw: Any, vector: Array, rows: int | slice) -> None:
        """Puts the leaf into its columns of `vector` (N, O): one row, or all of a batch."""
        value = self.array(raw)
        if self.leaf.kind == "discrete":
            vector[rows, self.where] = self._one_hot(value)
        else:
            vector[rows, self.where] = value.reshape(self.flat)

    @property
    def name(self) -> str:
        return f"{self.what} {self.leaf.name!r}" if self.leaf.path else self.what

    def _converted(self, raw: Any) -> Array:
        """Lists and plain numbers; whole numbers may stand for an unsigned dtype, and True for 1."""
        try:
            value = np.asarray(raw)
        except ValueError as error:
            raise Unfit(f"{self.name} is no array of numbers: {short(raw)}") from error
        if value.dtype.kind not in "biuf":
            raise Unfit(f"{self.name} is a {type(raw).__name__}, not an array of numbers: {short(raw)}")
        if value.dtype.kind in "iu" and self._declared.kind in "iu":
            cast = value.astype(self._declared)
            return cast if np.array_equal(cast, value) else value
        return value

    def _one_hot(self, value: Array) -> Array:
        leaf = self.leaf
        if value.dtype.kind not in "iu" or (value < leaf.start).any() or (value >= leaf.start + leaf.size).any():
            raise Unfit(
                f"{self.name} is {short(value)}, but its Discrete space holds the whole numbers {leaf.start} to "
                f"{leaf.start + leaf.size - 1}"
            )
        return np.arange(leaf.start, leaf.start + leaf.size) == value[..., None]


class Reader:
    """Reads observations (and the privileged state) of one environment, or of a batch of `batch` environments.

    `Layout.encode` gives the same numbers without the checks.
    """

    def __init__(self, spec: EnvSpec, batch: int | None = None) -> None:
        lead = () if batch is None else (batch,)
        self._spec = spec
        self._vectors = _parts(spec.layout, lead, "observation")
        self._images = [Part(leaf, slice(0, 0), lead, "observation") for leaf in spec.layout.images]
        self._states = _parts(spec.state, lead, _state_words(spec)) if spec.state is not None else []
        self._state_in_info = spec.state_from == "info"
        # The usual case, one flat Box and nothing else, is told apart because this is where most of a step's time goes.
        flat = [
            part for part in self._vectors if part.leaf.kind == "box" and part.shape == part.flat and not part.leaf.path
        ]
        self._mask_size = spec.mask_size
        alone = len(flat) == 1 == len(spec.layout.leaves) and not self._states and not self._mask_size
        self._plain = flat[0] if alone else None
        self._size, self._state_size = spec.observation_size, spec.state_size

    def blank(self, rows: int) -> Observation:
        """An unfilled batch that `read` writes into; every call gives new arrays."""
        vector, state = np.empty((rows, self._size), np.float32), np.empty((rows, self._state_size), np.float32)
        if not self._images and not self._mask_size:
            return Observation(vector, state)
        images = {part.leaf.name: np.empty((rows, *part.leaf.shape), part.leaf.dtype) for part in self._images}
        return Observation(vector, state, images, np.ones((rows, self._mask_size), bool) if self._mask_size else None)

    def read(self, raw: Any, info: Any, into: Observation, rows: int | slice) -> None:
        """Checks what an environment returned and writes it into `rows` of a batch, but for the mask. Raises Unfit."""
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

    def read_mask(self, raw: Any, info: Any, into: Observation, row: int, over: bool = False) -> None:
        """Checks the mask that one environment gave, where there are masks, and writes it into its row. Raises Unfit.

        over: the episode has terminated, so that a mask may allow nothing or be missing.
        """
        if into.mask is None:
            return
        source, key = info if self._spec.mask_from == "info" else raw, self._spec.mask_key
        if not isinstance(source, dict) or key not in source:
            if over:
                return  # all are allowed, which is what `blank` says
            where = "info" if self._spec.mask_from == "info" else "the observation"
            keys = ", ".join(repr(name) for name in source) if isinstance(source, dict) else type(source).__name__
            raise Unfit(
                f"{where} has no {key!r} (it has: {keys or 'nothing'}), but the mask comes from there (mask_key)"
            )
        try:
            into.mask[row] = as_mask(source[key], self._spec.counts, over)
        except BadMask as error:
            raise Unfit(f"{mask_words(self._spec)} {error}") from error

    def check_finite(self, batch: Observation, row: int) -> None:
        """Raises NotFinite if a row of a batch is not."""
        own = Observation(batch.vector[row : row + 1], batch.state[row : row + 1])
        if not is_finite(own):
            raise NotFinite(first_not_finite(own, self._spec)[1])

    @staticmethod
    def clear(batch: Observation, row: int) -> None:
        """Zeros in a row of a batch that nothing, or nothing good, was read into."""
        for array in (batch.vector, batch.state, *batch.images.values()):
            array[row] = 0
        if batch.mask is not None:
            batch.mask[row] = True

    def _from_info(self, info: Any) -> Any:
        key = self._spec.state_key
        if not isinstance(info, dict) or key not in info:
            keys = ", ".join(repr(name) for name in info) if isinstance(info, dict) else type(info).__name__
            raise Unfit(f"info has no {key!r} (it has: {keys or 'nothing'}), but the privileged state comes from there")
        return info[key]


def all_finite(array: Array) -> bool:
    """Whether every number is finite. Counting takes half the time of `.all()` on small arrays."""
    return np.count_nonzero(np.isfinite(array)) == array.size


def is_finite(observation: Observation) -> bool:
    """Whether a whole batch is finite: one vectorised look, so that the culprit is sought only where there is one."""
    return all_finite(observation.vector) and (not observation.state.size or all_finite(observation.state))


def first_not_finite(observation: Observation, spec: EnvSpec) -> tuple[int, str]:
    """The row of the first value that is not finite, and words for it."""
    pairs = [(observation.vector, spec.layout, "observation")]
    if spec.state is not None:
        pairs.append((observation.state, spec.state, _state_words(spec)))
    for array, layout, what in pairs:
        for row, column in np.argwhere(~np.isfinite(array)):
            for part in _parts(layout, (), what):
                if part.where.start <= column < part.where.stop:
                    at = np.unravel_index(column - part.where.start, part.leaf.shape)
                    element = f", element {[int(index) for index in at]}," if at else ""
                    return int(row), f"{part.name}{element} is {array[row, column]} as float32; it must be finite"
    raise ValueError("every value is finite")


def copied(observation: Observation) -> Observation:
    """The same in arrays of its own."""
    images = {name: image.copy() for name, image in observation.images.items()}
    mask = None if observation.mask is None else observation.mask.copy()
    return Observation(observation.vector.copy(), observation.state.copy(), images, mask)


def mask_words(spec: EnvSpec) -> str:
    return f"the mask {'info' if spec.mask_from == 'info' else 'observation'}[{spec.mask_key!r}]"


def _state_words(spec: EnvSpec) -> str:
    return f"state info[{spec.state_key!r}]" if spec.state_from == "info" else "state"


def _parts(layout: Layout, lead: tuple[int, ...], what: str) -> list[Part]:
    parts, start = [], 0
    for leaf in layout.vectors:
        parts.append(Part(leaf, slice(start, start + leaf.size), lead, what))
        start += leaf.size
    return parts


def short(value: Any, limit: int = 200) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
