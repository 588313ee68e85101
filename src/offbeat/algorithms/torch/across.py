"""Sums over all ranks inside of an update, so that an update of K ranks is one update with all of their rows.

A backend says with `together` which ranks update together. Without it there is one rank, and nothing is communicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.ranks import Ranks

_RANKS: ContextVar[Ranks | None] = ContextVar("ranks", default=None)


@contextmanager
def together(ranks: Ranks | None) -> Iterator[None]:
    """Updates inside of the block are made together with these ranks."""
    before = _RANKS.set(ranks)
    try:
        yield
    finally:
        _RANKS.reset(before)


def several() -> bool:
    """Whether there are other ranks."""
    return _RANKS.get() is not None


def average(gradients: Sequence[Tensor]) -> None:
    """Replaces each gradient by its mean over all ranks, in place."""
    ranks = _RANKS.get()
    if ranks is not None:
        for gradient in gradients:
            ranks.add_up(gradient)
            gradient.div_(ranks.size)


def mean(value: Tensor) -> Tensor:
    """The mean over ranks of a single number."""
    ranks = _RANKS.get()
    if ranks is None:
        return value
    value = value.clone()
    ranks.add_up(value)
    return value / ranks.size


def sums(first: Tensor, *others: Tensor | float) -> tuple[Any, ...]:
    """The sum over all ranks of tensors of one shape, or numbers, by one call."""
    ranks = _RANKS.get()
    if ranks is None:
        return first, *others
    stacked = torch.stack([first, *(torch.as_tensor(each).to(first).expand_as(first) for each in others)])
    ranks.add_up(stacked)
    return stacked.unbind()


def mean_and_variance(rows: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Mean and unbiased variance over the rows (R, ...) of all ranks, and how many these are; 0 for one row."""
    if not several():
        mean = rows.mean(0)
        return mean, rows.var(0) if len(rows) > 1 else torch.zeros_like(mean), len(rows)
    total, count = sums(rows.sum(0), len(rows))
    mean = total / count
    (squares,) = sums((rows - mean).square().sum(0))
    return mean, squares / (count - 1).clamp(min=1), count


def smallest(number: int) -> int:
    """The least of a whole number on all ranks."""
    ranks = _RANKS.get()
    if ranks is None:
        return number
    return int(ranks.gather(np.array([number], np.float64)).min())
