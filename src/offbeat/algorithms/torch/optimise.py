"""Adam on flat vectors, and the one seam through which every gradient reaches a parameter."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Adam:
    """Adam's state for one flat vector; the step itself is torch's fused kernel."""

    def __init__(self, flat: Tensor) -> None:
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = torch.zeros((), dtype=torch.float32, device=flat.device)

    def step(self, flat: Tensor, gradient: Tensor, rate: float) -> None:
        self.steps += 1
        torch._fused_adam_(
            [flat],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield from (("mean", self.mean), ("square", self.square), ("steps", self.steps))


def apply(flat: Tensor, gradient: Tensor, optimiser: Adam, rate: float, max_norm: float | None = None) -> None:
    """One optimiser step on a flat vector: clips the gradient's norm where asked, then steps at `rate`."""
    if max_norm is not None:
        gradient = gradient * (max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0)
    optimiser.step(flat, gradient, rate)
