"""Rows that are drawn at random."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from offbeat.compat.skrl.memories.memory import RingMemory
from offbeat.errors import UsageError
from offbeat.types import Array


class RandomRows(RingMemory):
    """`RandomMemory` of either framework, which writes `draw`."""

    def __init__(
        self,
        *,
        memory_size: int,
        num_envs: int = 1,
        device: Any = None,
        export: bool = False,
        export_format: Literal["pt", "npz", "csv"] = "pt",
        export_directory: str = "",
        replacement: bool = False,
    ) -> None:
        RingMemory.__init__(
            self,
            memory_size=memory_size,
            num_envs=num_envs,
            device=device,
            export=export,
            export_format=export_format,
            export_directory=export_directory,
        )
        self.replacement = replacement

    def draw(self, size: int, count: int) -> Array:
        """`count` of the numbers below `size`, with or without replacement; never more than there are without."""
        raise NotImplementedError

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[Any]]:
        """batch_size rows, or as many sequences of consecutive steps of one environment."""
        last = (sequence_length - 1) * self.num_envs
        size = len(self) - last
        if size < 1:
            raise UsageError(
                f"sample: the memory holds {len(self)} rows, too few for sequence_length={sequence_length}"
            )
        indexes = self.draw(size, batch_size)
        if sequence_length > 1:
            steps = indexes[:, None] + np.arange(0, last + 1, self.num_envs)
            # Counted from the oldest row, so that no sequence reaches from the newest row to the oldest.
            indexes = (steps.reshape(-1) + self.shard.oldest) % self.shard.capacity
        return self.sample_by_index(names, indexes=indexes, mini_batches=mini_batches)
