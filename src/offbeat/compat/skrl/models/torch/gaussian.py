"""Independent normal actions in the environment's own units, not squashed."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Normal

from offbeat.compat.skrl.models.torch.model import Inputs, Output
from offbeat.compat.skrl.utils.spaces.torch import compute_space_limits
from offbeat.errors import UsageError

REDUCTIONS = {"mean": torch.mean, "sum": torch.sum, "prod": torch.prod, "none": None}
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class _Draw(torch.autograd.Function):
    """Actions  mean + std * noise,  clipped to limits, and the log-density (batch, A) of each component.

    One function with its gradient written out, because autograd would keep a dozen small steps.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor, low: Any, high: Any) -> tuple[Tensor, Tensor]:
        moved = log_std.exp() * noise
        actions, score = mean + moved, noise
        ctx.inside = None
        if low is not None or high is not None:
            drawn = actions
            actions = torch.clamp(drawn, min=low, max=high)
            ctx.inside = actions == drawn
            score = (actions - mean) * (-log_std).exp()
        ctx.save_for_backward(moved, log_std, score)
        return actions, -(torch.addcmul(log_std, score, score, value=0.5) + _HALF_LOG_TAU)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Inside the limits the score is the noise:  d log p / d log std = -1.  Outside, the action is constant:
        d log p / d mean = score / std,  d log p / d log std = score^2 - 1.
        """
        d_actions, d_log_prob = gradients
        moved, log_std, score = ctx.saved_tensors
        d_mean, d_log_std = d_actions, d_actions * moved - d_log_prob
        if ctx.inside is not None:
            d_mean = torch.where(ctx.inside, d_mean, d_log_prob * score * (-log_std).exp())
            d_log_std = torch.where(ctx.inside, d_log_std, d_log_prob * (score * score - 1.0))
        return d_mean, d_log_std.sum_to_size(log_std.shape), None, None, None


class GaussianMixin:
    """`act` for a policy whose `compute` returns means (batch, A) and {"log_std": (A,) or (batch, A)}.

    clip_actions, clip_mean_actions: clip to the limits of the action space what was drawn, or the means before.
    clip_log_std: clips the log standard deviation to min_log_std and max_log_std.
    reduction: of the log-probability over the action's components; "none" keeps (batch, A). role: what `compute` gets
    where `act` is called without one.
    """

    action_space: Any
    device: torch.device
    compute: Any

    def __init__(
        self,
        *,
        clip_actions: bool = False,
        clip_mean_actions: bool = False,
        clip_log_std: bool = True,
        min_log_std: float = -20,
        max_log_std: float = 2,
        reduction: Literal["mean", "sum", "prod", "none"] = "sum",
        role: str = "",
    ) -> None:
        if reduction not in REDUCTIONS:
            raise UsageError(f"reduction={reduction!r} is unknown; use {', '.join(REDUCTIONS)}")
        self._reduction = REDUCTIONS[reduction]
        self._clip_actions, self._clip_mean_actions = clip_actions, clip_mean_actions
        self._log_std_limits = (min_log_std, max_log_std) if clip_log_std else None
        self._limits = compute_space_limits(self.action_space, device=self.device, none_if_unbounded="any")
        self._role = role
        self._moments: dict[str, tuple[Tensor, Tensor]] = {}  # mean and log deviation, last of each role; "": of any

    def act(self, inputs: Inputs, *, role: str = "") -> Output:
        """Drawn actions (batch, A), and log_std, log_prob (batch, 1) and mean_actions.

        With `taken_actions` in the inputs, log_prob is theirs. The density is that of the normal distribution, also
        where actions are clipped.
        """
        role = role or self._role
        mean, outputs = self.compute(inputs, role)
        log_std = outputs["log_std"]
        if self._clip_mean_actions:
            mean = self._clipped(mean)
        if self._log_std_limits is not None:
            log_std = outputs["log_std"] = log_std.clamp(*self._log_std_limits)
        self._moments[role] = self._moments[""] = mean, log_std
        limits = self._limits if self._clip_actions else (None, None)
        actions, log_prob = _Draw.apply(mean, log_std, torch.randn_like(mean), *limits)
        if "taken_actions" in inputs:
            score = (inputs["taken_actions"] - mean) * (-log_std).exp()
            log_prob = -(torch.addcmul(log_std, score, score, value=0.5) + _HALF_LOG_TAU)
        if self._reduction is not None:
            log_prob = self._reduction(log_prob, dim=-1, keepdim=True)
        outputs["log_prob"], outputs["mean_actions"] = log_prob, mean
        return actions, outputs

    def _clipped(self, actions: Tensor) -> Tensor:
        low, high = self._limits
        return actions if low is None and high is None else torch.clamp(actions, min=low, max=high)

    def _last(self, role: str) -> tuple[Tensor, Tensor] | None:
        """The last moments of a role; of any, where it is not given or has not acted."""
        return self._moments.get(role, self._moments.get(""))

    def get_entropy(self, *, role: str = "") -> Tensor:
        """The entropy (batch, 1) of the last distribution, of this role if it has acted; 0 before the first `act`."""
        moments = self._last(role)
        if moments is None:
            return torch.zeros((), device=self.device)
        mean, log_std = moments
        return (log_std + (0.5 + _HALF_LOG_TAU)).expand_as(mean).sum(-1, keepdim=True)

    def distribution(self, *, role: str = "") -> Normal | None:
        """The last distribution, of this role if it has acted; None before the first call of `act`."""
        moments = self._last(role)
        return None if moments is None else Normal(moments[0], moments[1].exp(), validate_args=False)
