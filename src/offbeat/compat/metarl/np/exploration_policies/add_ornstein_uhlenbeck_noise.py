"""Noise on actions that is correlated over steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.np.exploration_policies.add_gaussian_noise import half_widths
from offbeat.compat.metarl.np.exploration_policies.exploration_policy import Disturbed, ExplorationPolicy
from offbeat.errors import UsageError
from offbeat.policies.exploration import OrnsteinUhlenbeckNoise


class AddOrnsteinUhlenbeckNoise(ExplorationPolicy):
    """x <- x + theta * (mu - x) * dt + sigma * sqrt(dt) * normal, added to the policy's action.

    Each environment has its own x, which starts at x0 (0 for None) in each episode. All are in the units of the action
    space, to which actions are clipped.
    """

    def __init__(
        self,
        env_spec: Any,
        policy: Any,
        *,
        mu: float = 0,
        sigma: float = 0.3,
        theta: float = 0.15,
        dt: float = 1e-2,
        x0: Any = None,
    ) -> None:
        super().__init__(policy)
        if sigma < 0 or theta < 0 or dt <= 0:
            raise UsageError(f"sigma={sigma}, theta={theta}, dt={dt}: sigma and theta must be at least 0, dt above 0")
        half = half_widths(env_spec)
        description = {"scale": sigma / half, "spread": 1.0, "pull": theta, "time_step": dt}
        noise = OrnsteinUhlenbeckNoise(description, own_spec(env_spec))
        start = (np.zeros_like(half) if x0 is None else x0) - np.asarray(mu, float)
        fresh = np.broadcast_to(start / half, half.shape)
        self._disturbed = Disturbed(env_spec, noise, before=mu / half, fresh=fresh)

    def reset(self, dones: Any = None) -> None:
        self._disturbed.reset(dones)
        super().reset(dones)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self._disturbed.action(self.policy, observation), {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return self._disturbed.actions(self.policy, np.asarray(observations)), {}
