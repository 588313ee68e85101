"""A learning rate that follows the divergence between successive policies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler


class KLAdaptiveLR(LRScheduler):
    """Divides the rate by lr_factor where the divergence is above kl_threshold * kl_factor; multiplies it where below.

    Without a divergence, as in SAC, the rate stays. min_lr, max_lr: its bounds.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        kl_threshold: float = 0.008,
        min_lr: float = 1e-6,
        max_lr: float = 1e-2,
        kl_factor: float = 2,
        lr_factor: float = 1.5,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.kl_threshold, self.min_lr, self.max_lr = kl_threshold, min_lr, max_lr
        self._kl_factor, self._lr_factor = kl_factor, lr_factor
        super().__init__(optimizer, last_epoch)
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def step(self, kl: Tensor | float | None = None, *, epoch: int | None = None) -> None:  # type: ignore[override]
        """Adapts the rate to a divergence; None changes nothing."""
        if kl is None:
            return
        for group in self.optimizer.param_groups:
            if kl > self.kl_threshold * self._kl_factor:
                group["lr"] = max(group["lr"] / self._lr_factor, self.min_lr)
            elif kl < self.kl_threshold / self._kl_factor:
                group["lr"] = min(group["lr"] * self._lr_factor, self.max_lr)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[Any]:
        return list(self._last_lr)


KLAdaptiveRL = KLAdaptiveLR
"""The name in older versions of skrl."""
