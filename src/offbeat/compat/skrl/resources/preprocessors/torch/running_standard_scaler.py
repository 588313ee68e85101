"""Inputs minus their running mean, divided by their running standard deviation."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.algorithms.torch.across import mean_and_variance
from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.utils.spaces.torch import compute_space_size


class RunningStandardScaler(nn.Module):
    """Standardises inputs (batch, size) and clips them to +- clip_threshold. size: also a space.

    Statistics are in float64 and begin as one row of mean 0 and variance 1. epsilon is added to the deviation.
    """

    running_mean: Tensor
    running_variance: Tensor
    current_count: Tensor

    def __init__(
        self,
        size: Any,
        *,
        epsilon: float = 1e-8,
        clip_threshold: float = 5.0,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__()
        self.epsilon, self.clip_threshold, self.device = epsilon, clip_threshold, config.torch.parse_device(device)
        width = compute_space_size(size, occupied_size=True)
        options: dict[str, Any] = {"dtype": torch.float64, "device": self.device}
        self.register_buffer("running_mean", torch.zeros(width, **options))
        self.register_buffer("running_variance", torch.ones(width, **options))
        self.register_buffer("current_count", torch.ones((), **options))

    def forward(
        self, x: Tensor | None, *, train: bool = False, inverse: bool = False, no_grad: bool = True
    ) -> Tensor | None:
        """Standardised inputs; None for None. train: takes the inputs into the statistics first.

        inverse: scales standardised numbers back. no_grad: whether autograd is off.
        """
        if x is None:
            return None
        with torch.no_grad() if no_grad else contextlib.nullcontext():
            if train:
                self._merge(x.reshape(-1, x.shape[-1]))
            mean, deviation = self.running_mean.to(x.dtype), self.running_variance.to(x.dtype).sqrt()
            if inverse:
                return deviation * x.clamp(-self.clip_threshold, self.clip_threshold) + mean
            return ((x - mean) / (deviation + self.epsilon)).clamp(-self.clip_threshold, self.clip_threshold)

    def _merge(self, rows: Tensor) -> None:
        """Adds rows (R, size) to the statistics (Chan et al.); of a single row, the variance is 0.

        In an update of several ranks, these are the rows of all.
        """
        mean, variance, count = mean_and_variance(rows)
        delta = mean - self.running_mean
        total = self.current_count + count
        squares = self.running_variance * self.current_count + variance * count
        squares = squares + delta.square() * (self.current_count * count / total)
        self.running_mean.add_(delta * (count / total))
        self.running_variance.copy_(squares / total)
        self.current_count.copy_(total)
