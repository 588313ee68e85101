"""Sizes of Gymnasium spaces.

In a flat tensor, members of Dict spaces are in the order of their sorted keys; a Discrete value is one number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium import spaces

from offbeat.errors import SpaceError

Path = tuple[str | int, ...]


def leaves(space: gymnasium.Space | None, path: Path = ()) -> Iterator[tuple[Path, gymnasium.Space]]:
    """The members of nested Dict and Tuple spaces, in the order in which they are flattened."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.keys()):
            yield from leaves(space[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, member in enumerate(space):
            yield from leaves(member, (*path, index))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
        yield path, space
    elif space is not None:
        raise SpaceError(f"the space {space} is not supported; use Box, Discrete, MultiDiscrete, Dict or Tuple")


def compute_space_size(space: Any, *, occupied_size: bool = False) -> int:
    """The number of elements of a space, 0 for None. space: also a number, or a shape.

    occupied_size: of its flat tensor, in which a Discrete value is one number, and not one number for each choice.
    """
    if isinstance(space, int | float):
        return int(space)
    if isinstance(space, tuple | list):
        return math.prod(int(each) for each in space)
    if space is None:
        return 0
    if not occupied_size:
        return int(spaces.flatdim(space))
    return sum(1 if isinstance(each, spaces.Discrete) else math.prod(each.shape or ()) for _, each in leaves(space))
