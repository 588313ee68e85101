"""Independent normal noise on actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.np.exploration_policies.exploration_policy import Disturbed, ExplorationPolicy
from offbeat.errors import UsageError
from offbeat.policies.exploration import GaussianNoise
from offbeat.types import Array


def half_widths(env_spec: Any) -> Array:
    """Half of the width of each action dimension (A,): noise in the environment's units, divided by it, is ours."""
    if not isinstance(env_spec.action_space, spaces.Box):
        raise UsageError(f"env_spec has the action space {env_spec.action_space}; noise needs a Box")
    spec = own_spec(env_spec)
    half: Array = (np.asarray(spec.action_high) - np.asarray(spec.action_low)) / 2.0
    return half


class AddGaussianNoise(ExplorationPolicy):
    """Noise whose standard deviation falls linearly from max_sigma to min_sigma over the first decay_period paths.

    sigma is in the units of the action space, to which actions are clipped.
    """

    def __init__(
        self,
        env_spec: Any,
        policy: Any,
        max_sigma: float = 1.0,
        min_sigma: float = 0.1,
        decay_period: int = 1_000_000,
    ) -> None:
        super().__init__(policy)
        if decay_period < 1 or min(min_sigma, max_sigma) < 0.0:
            raise UsageError(
                f"max_sigma={max_sigma}, min_sigma={min_sigma}, decay_period={decay_period}: sigmas must be at least 0 "
                "and decay_period at least 1"
            )
        self._sigmas, self._decay_period, self._half = (max_sigma, min_sigma), decay_period, half_widths(env_spec)
        self._noise: dict[str, Any] = {"scale": max_sigma / self._half, "spread": 1.0}
        self._disturbed = Disturbed(env_spec, GaussianNoise(self._noise, own_spec(env_spec)))
        self._paths = 0  # begun so far

    @property
    def sigma(self) -> float:
        """The standard deviation now."""
        first, last = self._sigmas
        return first + (last - first) * min(1.0, self._paths / self._decay_period)

    def reset(self, dones: Any = None) -> None:
        self._paths += 1 if dones is None else int(np.count_nonzero(dones))
        super().reset(dones)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self._noise["scale"] = self.sigma / self._half
        return self._disturbed.action(self.policy, observation), {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        self._noise["scale"] = self.sigma / self._half
        return self._disturbed.actions(self.policy, np.asarray(observations)), {}
