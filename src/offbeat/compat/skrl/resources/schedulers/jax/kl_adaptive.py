"""A learning rate that follows the divergence between successive policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def KLAdaptiveLR(
    *,
    kl_threshold: float = 0.008,
    min_lr: float = 1e-6,
    max_lr: float = 1e-2,
    kl_factor: float = 2,
    lr_factor: float = 1.5,
) -> Callable[..., float]:
    """A schedule (count, lr=, kl=) -> rate.

    It divides the rate by lr_factor where the divergence is above kl_threshold * kl_factor, and multiplies it where
    below kl_threshold / kl_factor, within min_lr and max_lr. Without a divergence, as in SAC, the rate stays; without a
    rate, 1 is returned.
    """

    def schedule(count: int, *, lr: float | None = None, kl: Any = None) -> float:
        if lr is None:
            return 1.0
        if kl is not None and kl > kl_threshold * kl_factor:
            return max(lr / lr_factor, min_lr)
        if kl is not None and kl < kl_threshold / kl_factor:
            return min(lr * lr_factor, max_lr)
        return lr

    return schedule


kl_adaptive = KLAdaptiveLR
"""The name in optax's style."""
KLAdaptiveRL = KLAdaptiveLR
"""The name in older versions of skrl."""
