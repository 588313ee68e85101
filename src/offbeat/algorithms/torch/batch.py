"""Batches as tensors, and their pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

NO_MASK = torch.ones((1, 0), dtype=torch.bool)
BLOCK_ROWS = 2_048
"""Large batches are taken in blocks of so many rows."""


@dataclass(frozen=True)
class Batch:
    """`Transitions` as tensors on the learner's device, normalised and scaled; masks (B, K) bool, K = 0 for none."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    state: Tensor
    next_state: Tensor
    mask: Tensor = NO_MASK
    next_mask: Tensor = NO_MASK

    def __len__(self) -> int:
        return len(self.reward)

    def rows(self, rows: slice) -> Batch:
        return Batch(*(getattr(self, each.name)[rows] for each in fields(self)))


def allowed(values: Tensor, mask: Tensor) -> Tensor:
    """Values or logits (..., K) of actions, -inf where the mask (B, K) bool forbids one; K = 0 forbids none."""
    return values if mask.shape[1] == 0 else values.masked_fill(~mask, -math.inf)


def blocks(count: int, explicit: bool) -> list[slice]:
    """The rows of a batch in pieces whose activations stay in the cache, where that is of use.

    Modules that go through autograd see the whole batch: to batch norm and its like, pieces are not the same.
    """
    if not explicit or count < 2 * BLOCK_ROWS:
        return [slice(0, count)]
    return [slice(start, start + BLOCK_ROWS) for start in range(0, count, BLOCK_ROWS)]


def total(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])
