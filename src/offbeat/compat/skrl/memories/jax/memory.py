"""Memories whose tensors are JAX's."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.compat.skrl.jax_arrays import JAX
from offbeat.compat.skrl.memories.memory import RingMemory
from offbeat.compat.skrl.memories.random import RandomRows
from offbeat.types import Array


class Memory(RingMemory):
    """To subclass: the newest memory_size * num_envs rows, time first. A subclass writes `sample`.

    Samples are JAX arrays; `tensors` are NumPy views of the ring, which can be written to.
    """

    arrays = JAX

    def get_tensor_by_name(self, name: str) -> Any:
        """A copy (memory_size, num_envs, size) as a JAX array; KeyError for an unknown name."""
        return self.arrays.put(self.tensors[name], self.device)


class RandomMemory(RandomRows, Memory):
    """Draws each row equally often. replacement: whether a row may be in a batch twice.

    Without replacement, `sample` returns fewer rows while the memory holds fewer than batch_size.
    """

    def draw(self, size: int, count: int) -> Array:
        """From NumPy's global random numbers, as in skrl; `set_seed` seeds them."""
        if self.replacement:
            return np.random.randint(0, size, count)  # noqa: NPY002
        rng = np.random.default_rng(np.random.randint(0, 2**31 - 1))  # noqa: NPY002
        return rng.choice(size, min(count, size), replace=False)
