"""Rows that are drawn at random."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offbeat.compat.skrl.memories.torch.memory import Memory
from offbeat.errors import UsageError


class RandomMemory(Memory):
    """Draws each row equally often. replacement: whether a row may be in a batch twice.

    Without replacement, `sample` returns fewer rows while the memory holds fewer than batch_size.
    """

    def __init__(
        self,
        *,
        memory_size: int,
        num_envs: int = 1,
        device: str | torch.device | None = None,
        export: bool = False,
        export_format: Literal["pt", "npz", "csv"] = "pt",
        export_directory: str = "",
        replacement: bool = False,
    ) -> None:
        Memory.__init__(
            self,
            memory_size=memory_size,
            num_envs=num_envs,
            device=device,
            export=export,
            export_format=export_format,
            export_directory=export_directory,
        )
        self.replacement = replacement

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[Tensor]]:
        """batch_size rows, or as many sequences of consecutive steps of one environment, drawn from torch."""
        last = (sequence_length - 1) * self.num_envs
        size = len(self) - last
        if size < 1:
            raise UsageError(
                f"sample: the memory holds {len(self)} rows, too few for sequence_length={sequence_length}"
            )
        if self.replacement:
            indexes = torch.randint(0, size, (batch_size,))
        else:
            # NumPy draws distinct numbers without a permutation of all rows.
            rng = np.random.default_rng(int(torch.randint(0, 2**62, ())))
            indexes = torch.from_numpy(rng.choice(size, min(batch_size, size), replace=False))
        if sequence_length > 1:
            indexes = (indexes.unsqueeze(1) + torch.arange(0, last + 1, self.num_envs)).flatten()
        return self.sample_by_index(names, indexes=indexes, mini_batches=mini_batches)
