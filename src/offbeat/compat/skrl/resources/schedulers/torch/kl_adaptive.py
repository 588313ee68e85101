"""A learning rate that follows the divergence between successive policies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from offbeat.compat.skrl.framework import logger


class KLAdaptiveLR(LRScheduler):
    """Divides the rate by lr_factor where the divergence is above kl_threshold * kl_factor; multiplies it where below.

    Without a divergence, as in SAC, the rate stays. min_lr, max_lr: its bounds. verbose: logs the rate in each step, as
    torch's schedulers did.
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
        self._kl_factor, self._lr_factor, self._verbose = kl_factor, lr_factor, False
        super().__init__(optimizer, last_epoch)  # which steps once
        self._verbose = verbose
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def step(self, kl: Tensor | float | None = None, *, epoch: int | None = None) -> None:  # type: ignore[override]
        """Adapts the rate to a divergence; None leaves it as it is. epoch: becomes `last_epoch`; None counts on."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        for number, group in enumerate(self.optimizer.param_groups):
            if kl is not None and kl > self.kl_threshold * self._kl_factor:
                group["lr"] = max(group["lr"] / self._lr_factor, self.min_lr)
            elif kl is not None and kl < self.kl_threshold / self._kl_factor:
                group["lr"] = min(group["lr"] * self._lr_factor, self.max_lr)
            if self._verbose:
                logger.info(f"epoch {self.last_epoch}: the learning rate of group {number} is {group['lr']:.4e}")
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[Any]:
        return list(self._last_lr)


KLAdaptiveRL = KLAdaptiveLR
"""The name in older versions of skrl."""
