"""Parts of a model: running statistics of observations, and a Gaussian over its outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.errors import UsageError
from offbeat.learn.statistics import RunningMoments

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "selu": nn.SELU,
    "relu": nn.ReLU,
    "lrelu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "gelu": nn.GELU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "identity": nn.Identity,
}


class EmpiricalNormalization(nn.Module):
    """Observations (B, D) minus their running mean, divided by their running deviation plus `eps`.

    `update` learns while the module is in training mode; with `until`, from about that many rows. The statistics are
    buffers, so they are part of the state dict.
    """

    count: Tensor
    _mean: Tensor
    _var: Tensor
    _std: Tensor

    def __init__(self, shape: int, eps: float = 1e-2, until: int | None = None) -> None:
        super().__init__()
        self.eps, self.until = eps, until
        for name, value in (("_mean", torch.zeros), ("_var", torch.ones), ("_std", torch.ones)):
            self.register_buffer(name, value(1, shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @property
    def mean(self) -> Tensor:
        return self._mean.squeeze(0).clone()

    @property
    def std(self) -> Tensor:
        return self._std.squeeze(0).clone()

    def forward(self, x: Tensor) -> Tensor:
        return (x - self._mean) / (self._std + self.eps)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Adds rows (B, D) to the statistics."""
        before = int(self.count)
        if not self.training or (self.until is not None and before >= self.until):
            return
        moments = RunningMoments(x.shape[-1])
        if before:
            moments.count = np.asarray(float(before))
            moments.mean = self._mean[0].double().cpu().numpy()
            moments.square = self._var[0].double().cpu().numpy() * before
        moments.update(x.detach().cpu().numpy())
        variance = torch.from_numpy(np.asarray(moments.square / moments.count))
        self._mean.copy_(torch.from_numpy(np.asarray(moments.mean)).unsqueeze(0))
        self._var.copy_(variance.unsqueeze(0))
        self._std.copy_(variance.sqrt().unsqueeze(0))
        self.count.copy_(torch.tensor(int(moments.count)))


class GaussianDistribution(nn.Module):
    """Independent normal outputs whose standard deviation is a parameter beside the network.

    std_type: "scalar" learns the deviation itself, "log" its logarithm; it is clamped to `std_range` either way.
    learn_std: False keeps `init_std`.
    """

    def __init__(
        self,
        output_dim: int,
        init_std: float = 1.0,
        std_range: tuple[float, float] = (1e-6, 1e6),
        std_type: str = "scalar",
        learn_std: bool = True,
    ) -> None:
        super().__init__()
        if std_type not in ("scalar", "log"):
            raise UsageError(f"distribution_cfg: std_type={std_type!r} is unknown; use scalar or log")
        if not init_std > 0:
            raise UsageError(f"distribution_cfg: init_std={init_std!r} must be more than 0")
        self.output_dim, self.std_type = output_dim, std_type
        self.std_range = max(std_range[0], 1e-6), std_range[1]
        value = float(init_std) if std_type == "scalar" else math.log(init_std)
        parameter = nn.Parameter(torch.full((output_dim,), value), requires_grad=learn_std)
        self.register_parameter("std_param" if std_type == "scalar" else "log_std_param", parameter)
        self._current: torch.distributions.Normal | None = None

    def log_std(self) -> Tensor:
        """The log standard deviation (A,), clamped."""
        low, high = self.std_range
        if self.std_type == "scalar":
            return self.get_parameter("std_param").clamp(low, high).log()
        return self.get_parameter("log_std_param").clamp(math.log(low), math.log(high))

    def update(self, mean: Tensor) -> None:
        """Sets the distribution that the properties below describe."""
        self._current = torch.distributions.Normal(mean, self.log_std().exp(), validate_args=False)

    @property
    def current(self) -> torch.distributions.Normal:
        if self._current is None:
            raise UsageError("the model has no output distribution yet: call it with stochastic_output=True first")
        return self._current


def make_distribution(output_dim: int, settings: Mapping[str, Any]) -> nn.Module:
    """The distribution that a `distribution_cfg` describes; the mapping is not changed."""
    own = dict(settings)
    kind = own.pop("class_name", "GaussianDistribution")
    if isinstance(kind, str):
        if kind.replace(":", ".").rpartition(".")[2] != "GaussianDistribution":
            raise UsageError(f"distribution_cfg: class_name={kind!r} is unknown; use GaussianDistribution, or a class")
        kind = GaussianDistribution
    try:
        made: nn.Module = kind(output_dim, **own)
    except TypeError as error:
        raise UsageError(f"distribution_cfg={dict(settings)!r} does not fit {kind.__name__}: {error}") from error
    return made
