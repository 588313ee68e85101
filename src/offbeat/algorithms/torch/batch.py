"""A batch of transitions as tensors, and its blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

NO_MASK = torch.ones((1, 0), dtype=torch.bool)
BLOCK_ROWS = 2_048
"""Large batches are processed in blocks of so many rows."""


@dataclass(frozen=True)
class Batch:
    """B transitions as tensors on the learner's device, normalised and scaled.

    obs, next_obs (B, O); action (B, A); reward, discount (B,); state, next_state (B, S). mask, next_mask (B, K) bool,
    K = 0 for none. weight (B,): importance weight of each row in the critic's loss, or None. extras: other columns.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    state: Tensor
    next_state: Tensor
    mask: Tensor = NO_MASK
    next_mask: Tensor = NO_MASK
    weight: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    def rows(self, rows: slice) -> Batch:
        """Some rows; the batch itself where these are all."""
        if rows.stop - rows.start == len(self):
            return self
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        extras = {name: column[rows] for name, column in values.pop("extras").items()}
        for name, value in values.items():
            values[name] = None if value is None else value[rows]
        return Batch(**values, extras=extras)


def blocks(count: int, explicit: bool) -> list[slice]:
    """The rows of a batch in blocks whose activations stay in the processor's cache, where the networks are explicit.

    Modules that go through autograd get the whole batch: batch norm, for one, would see the difference.
    """
    if not explicit or count < 2 * BLOCK_ROWS:
        return [slice(0, count)]
    return [slice(start, start + BLOCK_ROWS) for start in range(0, count, BLOCK_ROWS)]


class BlockSums:
    """Sums over the rows of a batch by name, and the rows' TD errors, block after block."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._errors: list[Tensor] = []

    def add(self, errors: Tensor | None = None, **values: Tensor) -> None:
        """errors: TD errors (E, B) or (B,) of the block. values: of any shape, to be summed over all of it."""
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value.sum() if name in self._sums else value.sum()
        if errors is not None:
            self._errors.append(errors)

    def __getitem__(self, name: str) -> Tensor:
        return self._sums[name]

    @property
    def errors(self) -> Tensor:
        """TD errors of the whole batch."""
        return self._errors[0] if len(self._errors) == 1 else torch.cat(self._errors, -1)


def mask_forbidden(values: Tensor, mask: Tensor) -> Tensor:
    """Values or logits (..., K) of actions, -inf where the mask (B, K) bool forbids one; K = 0 forbids none."""
    return values if mask.shape[1] == 0 else values.masked_fill(~mask, -math.inf)
