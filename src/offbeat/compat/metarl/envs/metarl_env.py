"""Gymnasium environments as metarl's: with an `EnvSpec` as their `spec`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offbeat.compat.metarl.envs.env_spec import EnvSpec
from offbeat.compat.metarl.envs.flat_spaces import with_flat_dim
from offbeat.errors import UsageError


class MetaRLEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment, or the one that `env_name` names; `spec` is its EnvSpec. reset and step are Gymnasium's."""

    def __init__(self, env: Any = None, env_name: str = "", is_image: bool = False) -> None:
        if (env is None) == (not env_name):
            raise UsageError(f"MetaRLEnv: env={env!r} and env_name={env_name!r}; pass exactly one of them")
        if is_image:
            raise UsageError("MetaRLEnv: is_image=True, but policies and q-functions take vectors: flatten the image")
        super().__init__(gymnasium.make(env_name) if env is None else env)
        self.observation_space = with_flat_dim(self.env.observation_space, "observation_space")
        self.action_space = with_flat_dim(self.env.action_space, "action_space")
        self._env_spec = EnvSpec(self.observation_space, self.action_space)

    @property
    def spec(self) -> Any:  # type: ignore[override]
        return self._env_spec


class Normalised(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes actions in [-expected_action_scale, expected_action_scale], and multiplies rewards by scale_reward.

    The wrapper scales and clips actions to the environment's bounds.
    """

    def __init__(self, env: Any, scale_reward: float = 1.0, expected_action_scale: float = 1.0) -> None:
        super().__init__(env)
        self._scale_reward, self._action_scale = scale_reward, expected_action_scale
        bounds = env.action_space
        self._scales = isinstance(bounds, spaces.Box)
        if isinstance(bounds, spaces.Box):
            if not (np.isfinite(bounds.low).all() and np.isfinite(bounds.high).all()):
                raise UsageError(f"normalize: the action space {bounds} has no finite bounds to scale actions to")
            limit = np.full(bounds.shape, expected_action_scale, bounds.dtype)
            self.action_space = spaces.Box(-limit, limit, dtype=bounds.dtype.type)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._scales:
            bounds: Any = self.env.action_space
            share = (np.asarray(action) / self._action_scale + 1.0) / 2.0
            action = np.clip(bounds.low + share * (bounds.high - bounds.low), bounds.low, bounds.high)
            action = action.astype(bounds.dtype)
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) * self._scale_reward, terminated, truncated, info


normalize = Normalised
