"""Memory through which batches reach a compiled loop without a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat.types import Array

ALIGNMENT = 64
"""JAX uses only memory with this alignment as it is."""


class Staging:
    """Two sets of buffers in turn, each (most, ...) for the columns of up to `most` batches.

    On a CPU the compiled loop reads these buffers themselves: nothing is copied, and no array is made per call. It may
    read them long after it was called, so a set is written again only after what read it has ended.
    """

    def __init__(self, like: Mapping[str, Array], most: int, dtype: np.dtype[Any], device: Any) -> None:
        self._most, self._dtype, self._device = most, dtype, device
        self._kinds = _kinds(like, dtype)
        self._sets = [
            {name: _aligned((most, *shape), kind) for name, (shape, kind) in self._kinds.items()} for _ in range(2)
        ]
        self._shared = [_shared(buffers) for buffers in self._sets] if device.platform == "cpu" else None
        self._readers: list[Any] = [None, None]
        self._next = 0

    def fits(self, given: Mapping[str, Array], most: int) -> bool:
        """Whether these columns have the names, shapes and types that the buffers were made for."""
        return most == self._most and _kinds(given, self._dtype) == self._kinds

    def put(self, given: Mapping[str, Array]) -> dict[str, Any]:
        """The columns (K, ...) as JAX arrays (most, ...) whose first K rows they are."""
        if self._readers[self._next] is not None:
            self._readers[self._next].block_until_ready()
        buffers = self._sets[self._next]
        for name, column in given.items():
            buffers[name][: len(column)] = column
        if self._shared is not None:
            return self._shared[self._next]
        return {name: jax.device_put(buffer, self._device) for name, buffer in buffers.items()}

    def used_by(self, result: Any) -> None:
        """Names an array that is ready once everything has been read that `put` returned last."""
        self._readers[self._next] = result
        self._next = 1 - self._next


def _shared(buffers: Mapping[str, Array]) -> dict[str, Any]:
    """JAX arrays on the CPU over the same memory; an error where JAX would copy it."""
    return {
        name: jax.dlpack.from_dlpack(buffer, copy=False) if buffer.size else jnp.asarray(buffer)
        for name, buffer in buffers.items()
    }


def _kinds(columns: Mapping[str, Array], dtype: np.dtype[Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """The shape of a row of each column, and the type of its buffer."""
    return {name: (np.shape(each)[1:], _kind(np.asarray(each).dtype, dtype)) for name, each in columns.items()}


def _kind(found: np.dtype[Any], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The learner's precision for floating-point numbers, 32 bits for integers unless it is 64."""
    if found.kind == "f":
        return dtype
    if found.kind == "i" and found.itemsize == 8 and dtype.itemsize < 8:
        return np.dtype(np.int32)
    return found


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
