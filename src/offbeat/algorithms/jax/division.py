"""Which arrays of an update are divided among the devices of a learner, and which are whole on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

Tree = TypeVar("Tree")
_ROWS: ContextVar[NamedSharding | None] = ContextVar("rows", default=None)


@contextmanager
def rows_divided_by(sharding: NamedSharding | None) -> Iterator[None]:
    """What the functions below do in what is compiled meanwhile; None is one device, for which they do nothing."""
    token = _ROWS.set(sharding)
    try:
        yield
    finally:
        _ROWS.reset(token)


def divisible(rows: int) -> int:
    """The next number of rows that can be divided equally."""
    sharding: Any = _ROWS.get()
    return rows if sharding is None else rows + -rows % int(sharding.mesh.size)


def divided(rows: Array) -> Array:
    """The rows (B, ...), each on one of the devices, where their number can be divided equally."""
    sharding = _ROWS.get()
    if sharding is None or divisible(len(rows)) != len(rows):
        return rows
    return jax.lax.with_sharding_constraint(rows, sharding)


def whole(tree: Tree) -> Tree:
    """A state, or another value, as it has to be on every device."""
    sharding = _ROWS.get()
    if sharding is None:
        return tree
    everywhere: Tree = jax.lax.with_sharding_constraint(tree, NamedSharding(sharding.mesh, PartitionSpec()))
    return everywhere
