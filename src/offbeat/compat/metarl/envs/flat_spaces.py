"""Gymnasium's spaces with the methods that metarl's spaces have: `flat_dim`, `flatten`, `unflatten`, of one or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from offbeat.envs.spaces import read_observation_space
from offbeat.errors import SpaceError
from offbeat.types import Array


class Flat:
    """A space whose elements can be written as one vector: a Box is flattened, a Discrete number becomes one-hot.

    Parts of a Dict come in the order of their sorted keys, those of a Tuple by position.
    """

    @property
    def flat_dim(self) -> int:
        return int(spaces.utils.flatdim(cast(Any, self)))

    def flatten(self, x: Any) -> Array:
        return np.asarray(spaces.utils.flatten(cast(Any, self), x))

    def flatten_n(self, xs: Sequence[Any]) -> Array:
        """Elements (N, ...) to vectors (N, flat_dim)."""
        return np.stack([self.flatten(x) for x in xs]) if len(xs) else np.zeros((0, self.flat_dim), np.float32)

    def unflatten(self, x: Any) -> Any:
        return spaces.utils.unflatten(cast(Any, self), np.asarray(x))

    def unflatten_n(self, xs: Any) -> Any:
        """Vectors (N, flat_dim) to elements: an array (N, ...), or a list where elements are not arrays."""
        found = [self.unflatten(x) for x in xs]
        return found if found and isinstance(found[0], dict | tuple) else np.asarray(found)


class Box(Flat, spaces.Box):
    """A Box with `flat_dim`."""

    def flatten_n(self, xs: Sequence[Any]) -> Array:
        return np.asarray(xs, self.dtype).reshape(len(xs), self.flat_dim)

    def unflatten_n(self, xs: Any) -> Array:
        return np.asarray(xs, self.dtype).reshape(len(xs), *self.shape)


class Discrete(Flat, spaces.Discrete):
    """A Discrete space with `flat_dim`, the number of its elements."""

    def flatten_n(self, xs: Sequence[Any]) -> Array:
        numbers = np.asarray(xs).reshape(len(xs), 1)
        return (numbers == np.arange(self.start, self.start + self.n)).astype(np.float32)

    def unflatten_n(self, xs: Any) -> Array:
        return np.asarray(xs).argmax(-1) + self.start


class MultiBinary(Flat, spaces.MultiBinary):
    """A MultiBinary space with `flat_dim`."""


class MultiDiscrete(Flat, spaces.MultiDiscrete):
    """A MultiDiscrete space with `flat_dim`."""


class Tuple(Flat, spaces.Tuple):
    """A Tuple with `flat_dim`."""


class Dict(Flat, spaces.Dict):
    """A Dict with `flat_dim`."""


def with_flat_dim(space: Any, name: str) -> Any:
    """The same space as one that has `flat_dim`. name: of the argument, for errors."""
    if hasattr(space, "flat_dim"):
        return space
    if isinstance(space, spaces.Box):
        return Box(space.low, space.high, dtype=cast(Any, space.dtype).type)
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(space.nvec, start=space.start)
    if isinstance(space, spaces.Tuple):
        return Tuple([with_flat_dim(part, name) for part in space.spaces])
    if isinstance(space, spaces.Dict):
        return Dict({key: with_flat_dim(part, name) for key, part in space.spaces.items()})
    raise SpaceError(
        f"{name} is a {type(space).__name__}; it must be a Gymnasium space: Box, Discrete, MultiBinary, MultiDiscrete, "
        "Tuple or Dict"
    )


def vectors_of(space: Any) -> int:
    """The size of an observation as one vector; SpaceError for images, which no network here takes."""
    layout = read_observation_space(space).layout
    if layout.images:
        raise SpaceError(
            f"the observation {layout.images[0].name!r} is an image {layout.images[0].shape}, but policies and "
            "q-functions take vectors: flatten it with gymnasium.wrappers.FlattenObservation"
        )
    return layout.size
