"""`MLPModel`: the actor and the critic that UniLab's APPO learner takes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.compat.unilab.rsl_rl.modules import (
    ACTIVATIONS,
    EmpiricalNormalization,
    GaussianDistribution,
    make_distribution,
)
from offbeat.errors import UsageError

Observations = Mapping[str, Tensor] | Tensor


class MLPModel(nn.Module):
    """An MLP over one set of observation groups, with normalisation and an output distribution where asked for.

    obs: groups by name, each (B, D), for their sizes. obs_groups: names of groups by set; obs_set: the set to use.
    distribution_cfg: makes the outputs random (class_name, init_std, std_type, std_range, learn_std). Instead
    of groups by name, one tensor (B, D) with the groups side by side will do.
    """

    is_recurrent = False

    def __init__(
        self,
        obs: Any,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: tuple[int, ...] | list[int] = (256, 256, 256),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.obs_groups, self.obs_dim = _groups(obs, obs_groups, obs_set)
        self.obs_normalization = obs_normalization
        self.obs_normalizer = EmpiricalNormalization(self.obs_dim) if obs_normalization else nn.Identity()
        self.distribution = None if distribution_cfg is None else make_distribution(output_dim, distribution_cfg)
        self.mlp = _mlp(self.obs_dim, hidden_dims, output_dim, activation)

    def get_latent(self, obs: Observations) -> Tensor:
        """The groups of this model side by side (B, D), normalised."""
        latent: Tensor = self.obs_normalizer(self._joined(obs))
        return latent

    def forward(
        self, obs: Observations, masks: Any = None, hidden_state: Any = None, stochastic_output: bool = False
    ) -> Tensor:
        """Outputs (B, output_dim): the mean, or a draw with stochastic_output, after which the properties below hold.

        masks, hidden_state: of recurrent models; anything but None gives a warning.
        """
        if masks is not None or hidden_state is not None:
            warnings.warn("MLPModel has no memory: masks and hidden_state have no effect; leave them out", stacklevel=2)
        out: Tensor = self.mlp(self.get_latent(obs))
        if self.distribution is None or not stochastic_output:
            return out
        self._gaussian.update(out)
        return self._gaussian.current.sample()

    def update_normalization(self, obs: Observations) -> None:
        """Adds observations to the running statistics, where there are some."""
        if isinstance(self.obs_normalizer, EmpiricalNormalization):
            self.obs_normalizer.update(self._joined(obs))

    @property
    def output_mean(self) -> Tensor:
        return self._gaussian.current.mean

    @property
    def output_std(self) -> Tensor:
        return self._gaussian.current.stddev

    @property
    def output_entropy(self) -> Tensor:
        return self._gaussian.current.entropy().sum(-1)

    def get_output_log_prob(self, outputs: Tensor) -> Tensor:
        """The log-probability (B,) of outputs under the distribution of the last stochastic call."""
        log_prob: Tensor = self._gaussian.current.log_prob(outputs).sum(-1)
        return log_prob

    def _joined(self, obs: Observations) -> Tensor:
        if isinstance(obs, Tensor):
            return obs
        return torch.cat([obs[group] for group in self.obs_groups], -1)

    @property
    def _gaussian(self) -> GaussianDistribution:
        if not isinstance(self.distribution, GaussianDistribution):
            raise UsageError("this model has no Gaussian output: make it with distribution_cfg")
        return self.distribution


def _groups(obs: Any, obs_groups: Mapping[str, Sequence[str]], obs_set: str) -> tuple[list[str], int]:
    """The names of a set's groups, and the size of all together."""
    if obs_set not in obs_groups:
        raise UsageError(f"obs_set={obs_set!r} is none of the sets in obs_groups: {', '.join(obs_groups)}")
    size = 0
    for group in obs_groups[obs_set]:
        if group not in obs.keys():  # noqa: SIM118 - a TensorDict has keys and no `in`
            raise UsageError(f"obs_groups[{obs_set!r}] names {group!r}, but obs has only {', '.join(obs.keys())}")
        if len(obs[group].shape) != 2:
            raise UsageError(f"obs[{group!r}] has shape {tuple(obs[group].shape)}, but it must be (batch, size)")
        size += obs[group].shape[-1]
    return list(obs_groups[obs_set]), size


def _mlp(size: int, hidden: Sequence[int], outputs: int, activation: str) -> nn.Sequential:
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation={activation!r} is unknown; use {', '.join(ACTIVATIONS)}")
    if not hidden:
        raise UsageError("hidden_dims is empty, but an MLPModel has at least one hidden layer")
    sizes = [size, *(size if each == -1 else int(each) for each in hidden)]
    layers: list[nn.Module] = []
    for first, second in itertools.pairwise(sizes):
        layers += [nn.Linear(first, second), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
