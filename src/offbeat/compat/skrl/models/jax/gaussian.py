"""Independent normal actions in the environment's own units, not squashed."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen

from offbeat.compat.skrl.models.jax.limits import limits_of
from offbeat.compat.skrl.models.jax.model import Inputs, Output
from offbeat.errors import UsageError

REDUCTIONS: dict[str, Any] = {"mean": jnp.mean, "sum": jnp.sum, "prod": jnp.prod, "none": None}
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class GaussianMixin:
    """`act` for a policy whose module returns means (batch, A) and {"log_std": (A,) or (batch, A)}.

    clip_actions, clip_mean_actions: clip to the limits of the action space what was drawn, or the means before.
    clip_log_std: clips the log standard deviation to min_log_std and max_log_std.
    reduction: of the log-probability over the action's components; "none" keeps (batch, A). role: what the module gets
    where `act` is called without one.
    """

    action_space: Any
    apply: Any
    state_dict: Any
    _key_of: Any

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
        self._limits, self._role = limits_of(self.action_space), role
        linen.Module.__post_init__(self)  # type: ignore[arg-type] # flax asks for it where a module has its own __init__

    def act(self, inputs: Inputs, *, role: str = "", params: Any = None) -> Output:
        """Drawn actions (batch, A), and log_std, stddev, log_prob (batch, 1) and mean_actions.

        With `taken_actions` in the inputs, log_prob is theirs. The density is that of the normal distribution, also
        where actions are clipped. `key` in the inputs is the random key; the module gets it, too. params: used instead
        of the model's own.
        """
        key = self._key_of(inputs)
        variables = self.state_dict.params if params is None else params
        mean, outputs = self.apply(variables, {**inputs, "key": key}, role or self._role)
        log_std = outputs["log_std"]
        if self._clip_mean_actions:
            mean = jnp.clip(mean, *self._limits)
        if self._log_std_limits is not None:
            log_std = jnp.clip(log_std, *self._log_std_limits)
        stddev = jnp.exp(log_std)
        actions = mean + stddev * jax.random.normal(key, mean.shape, mean.dtype)
        if self._clip_actions:
            actions = jnp.clip(actions, *self._limits)
        taken = inputs.get("taken_actions")
        score = ((actions if taken is None else taken) - mean) / stddev
        log_prob = -(0.5 * score * score + log_std + _HALF_LOG_TAU)
        if self._reduction is not None:
            log_prob = self._reduction(log_prob, axis=-1, keepdims=True)
        found = {"log_prob": log_prob, "mean_actions": mean, "log_std": log_std, "stddev": stddev}
        return actions, {**outputs, **found}

    def get_entropy(self, stddev: jax.Array, *, role: str = "") -> jax.Array:
        """The entropy of each component of normal actions with these standard deviations."""
        return jnp.log(stddev) + (0.5 + _HALF_LOG_TAU)
