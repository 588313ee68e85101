"""An environment by its Gymnasium id, as a class to pass as `env_cls`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np


class GenericGymEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The environment `id`, made with gym_kwargs. obs_scale: multiplies observations, 0 does not.

    to_float32: float64 observations become float32.
    """

    def __init__(
        self,
        id: str = "Pendulum-v1",
        gym_kwargs: Mapping[str, Any] | None = None,
        obs_scale: float = 0.0,
        to_float32: bool = False,
    ) -> None:
        env: Any = gymnasium.make(id, **dict(gym_kwargs or {}), disable_env_checker=True)
        space = env.observation_space
        if obs_scale:
            bounds = space.low * obs_scale, space.high * obs_scale
            space = gymnasium.spaces.Box(np.minimum(*bounds), np.maximum(*bounds), dtype=space.dtype)
            env = gymnasium.wrappers.TransformObservation(env, lambda obs: (obs * obs_scale).astype(space.dtype), space)
        if to_float32:
            space = gymnasium.spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
            env = gymnasium.wrappers.TransformObservation(env, lambda obs: np.asarray(obs, np.float32), space)
        super().__init__(env)
