"""Standardisation by running statistics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offbeat.compat.skrl.framework import config
from offbeat.compat.skrl.utils.spaces.sizes import compute_space_size
from offbeat.types import Array


class RunningStandardScaler:
    """Standardises inputs (batch, size) and clips them to +- clip_threshold. size: also a space.

    Statistics are in float64, NumPy's, and begin as one row of mean 0 and variance 1. epsilon is added to the
    deviation.
    """

    def __init__(
        self,
        size: Any,
        *,
        epsilon: float = 1e-8,
        clip_threshold: float = 5.0,
        device: str | jax.Device | None = None,
    ) -> None:
        self.epsilon, self.clip_threshold, self.device = epsilon, clip_threshold, config.jax.parse_device(device)
        width = compute_space_size(size, occupied_size=True)
        self.running_mean, self.running_variance = np.zeros(width), np.ones(width)
        self.current_count = np.ones(1)

    @property
    def state_dict(self) -> Any:
        """The statistics as `params`, for files; set it to a dictionary of them."""
        names = ("running_mean", "running_variance", "current_count")
        params = {name: getattr(self, name).astype(np.float32) for name in names}
        return SimpleNamespace(params=params, replace=lambda params: params)

    @state_dict.setter
    def state_dict(self, value: Any) -> None:
        for name in ("running_mean", "running_variance", "current_count"):
            own = getattr(self, name)
            setattr(self, name, np.asarray(value[name], np.float64).reshape(own.shape))

    def arrays(self) -> dict[str, Array]:
        """The statistics as they are, for a checkpoint to resume from."""
        return {name: getattr(self, name) for name in ("running_mean", "running_variance", "current_count")}

    def __call__(self, x: Any, *, train: bool = False, inverse: bool = False) -> Any:
        """Standardised inputs; None for None. train: takes the inputs into the statistics first.

        inverse: scales standardised numbers back.
        """
        if x is None:
            return None
        if train:
            self._merge(np.asarray(x, np.float64).reshape(-1, x.shape[-1]))
        library: Any = jnp if isinstance(x, jax.core.Tracer) else np  # a user's compiled function may call it, too
        values = x if library is jnp else np.asarray(x)
        mean, deviation = (each.astype(values.dtype) for each in (self.running_mean, np.sqrt(self.running_variance)))
        limits = -self.clip_threshold, self.clip_threshold
        if inverse:
            found = deviation * library.clip(values, *limits) + mean
        else:
            found = library.clip((values - mean) / (deviation + values.dtype.type(self.epsilon)), *limits)
        return found if library is jnp else jax.device_put(found, self.device)

    def _merge(self, rows: Array) -> None:
        """Adds rows (R, size) to the statistics (Chan et al.); of a single row, the variance is 0."""
        mean, count = rows.mean(0), len(rows)
        variance = rows.var(0, ddof=1) if count > 1 else np.zeros_like(mean)
        delta, total = mean - self.running_mean, self.current_count + count
        squares = self.running_variance * self.current_count + variance * count
        squares = squares + delta**2 * (self.current_count * count / total)
        self.running_mean = self.running_mean + delta * (count / total)
        self.running_variance, self.current_count = squares / total, total
