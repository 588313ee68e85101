"""Normal actions as one multivariate distribution with a diagonal covariance, in the environment's own units."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from offbeat.compat.skrl.models.torch.gaussian import GaussianMixin


class MultivariateGaussianMixin(GaussianMixin):
    """As `GaussianMixin`; the log-probability is always the joint one, so there is no reduction."""

    def __init__(
        self,
        *,
        clip_actions: bool = False,
        clip_mean_actions: bool = False,
        clip_log_std: bool = True,
        min_log_std: float = -20,
        max_log_std: float = 2,
        role: str = "",
    ) -> None:
        GaussianMixin.__init__(
            self,
            clip_actions=clip_actions,
            clip_mean_actions=clip_mean_actions,
            clip_log_std=clip_log_std,
            min_log_std=min_log_std,
            max_log_std=max_log_std,
            role=role,
        )

    def distribution(self, *, role: str = "") -> MultivariateNormal | None:  # type: ignore[override]
        """The last distribution, of this role if it has acted; None before the first call of `act`."""
        moments = self._last(role)
        if moments is None:
            return None
        mean, log_std = moments
        deviation: Tensor = log_std.exp().expand_as(mean)
        return MultivariateNormal(mean, scale_tril=torch.diag_embed(deviation), validate_args=False)
