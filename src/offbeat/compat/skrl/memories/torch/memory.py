"""Memories whose tensors are torch's."""

from __future__ import annotations

import numpy as np
import torch

from offbeat.compat.skrl.memories.memory import RingMemory
from offbeat.compat.skrl.memories.random import RandomRows
from offbeat.compat.skrl.torch_arrays import TORCH
from offbeat.types import Array


class Memory(RingMemory):
    """To subclass: the newest memory_size * num_envs rows, time first. A subclass writes `sample`."""

    arrays = TORCH


class RandomMemory(RandomRows, Memory):
    """Draws each row equally often. replacement: whether a row may be in a batch twice.

    Without replacement, `sample` returns fewer rows while the memory holds fewer than batch_size.
    """

    def draw(self, size: int, count: int) -> Array:
        """From torch's random numbers."""
        if self.replacement:
            return torch.randint(0, size, (count,)).numpy()
        # NumPy draws distinct numbers without a permutation of all rows.
        rng = np.random.default_rng(int(torch.randint(0, 2**62, ())))
        return rng.choice(size, min(count, size), replace=False)
