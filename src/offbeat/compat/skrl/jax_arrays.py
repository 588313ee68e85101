"""JAX's arrays, for what is written once for both frameworks."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat.compat.skrl.framework import config
from offbeat.types import Array


class JaxArrays:
    """`Arrays` of JAX."""

    kind: Any = jax.Array

    @property
    def learners(self) -> tuple[str, int]:
        return "JAX_WORLD_SIZE", config.jax.world_size

    @property
    def seed(self) -> int:
        return config.jax.seed

    def device(self, name: Any) -> Any:
        return config.jax.parse_device(name)

    def put(self, array: Any, device: Any) -> jax.Array:
        """A copy: JAX may use memory of NumPy as it is, and environments and rings write to theirs again."""
        return jax.device_put(np.array(array), device)

    def move(self, array: jax.Array, device: Any) -> jax.Array:
        return jax.device_put(array, device)

    def get(self, array: Any) -> Array:
        return np.asarray(array)

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> jax.Array:
        return jnp.concatenate(list(arrays), axis)

    def dtype_name(self, dtype: Any) -> str:
        return "float32" if dtype is None else np.dtype(dtype).name

    def without_gradients(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def shared(self, size: int) -> tuple[Any, np.ndarray]:
        memory = mmap.mmap(-1, size)
        return memory, np.frombuffer(memory, np.uint8)

    def view(self, column: Array, shared: Any) -> Array:
        """NumPy's: arrays of JAX cannot be written to."""
        return column


JAX = JaxArrays()
