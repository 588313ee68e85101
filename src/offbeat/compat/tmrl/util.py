"""What scripts import from `tmrl.util`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

partial = functools.partial


def collate_torch(batch: Sequence[Any], device: Any = None) -> Any:
    """A sequence of B equally nested values as one such value, whose leaves are tensors (B, ...) on `device`."""
    import torch

    first = batch[0]
    if isinstance(first, Mapping):
        return {key: collate_torch([each[key] for each in batch], device) for key in first}
    if isinstance(first, list | tuple):
        parts = [collate_torch(part, device) for part in zip(*batch, strict=True)]
        return parts if isinstance(first, list) else tuple(parts)
    if isinstance(first, torch.Tensor):
        return torch.stack(list(batch)).to(device)
    return torch.from_numpy(np.stack([np.asarray(each) for each in batch])).to(device)
