"""Numbers of tensors between two writes to TensorBoard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from offbeat.compat.skrl.agents.tracking import reduced

FOLD = 64
"""Tensors are kept for this many updates, and reduced together then: one wait for the device instead of many."""
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda values: values.amax(1),
    "min": lambda values: values.amin(1),
    "mean": lambda values: values.mean(1),
}


class TensorTracker:
    """Largest, least and mean numbers of tensors (B,), one per update and tag."""

    def __init__(self) -> None:
        self._pending: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._folded: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, tag: str, values: Tensor) -> None:
        pending = self._pending[tag]
        pending.append(values)
        if len(pending) >= FOLD or pending[0].shape != values.shape:
            self._fold(tag)

    def _fold(self, tag: str) -> None:
        pending = self._pending.pop(tag)
        by_shape = defaultdict(list)
        for values in pending:
            by_shape[values.shape].append(values.reshape(-1))
        for group in by_shape.values():
            stacked = torch.stack(group)
            for kind, reduce in REDUCTIONS.items():
                self._folded[f"{tag} ({kind})"].append(reduce(stacked))

    def take(self) -> dict[str, float]:
        """The largest, the least and the mean of each tag since the last call."""
        for tag in list(self._pending):
            self._fold(tag)
        found = {tag: reduced(tag, torch.cat(values).tolist()) for tag, values in self._folded.items()}
        self._folded.clear()
        return found
