"""Which wrapper an environment gets."""

from __future__ import annotations

from typing import Any

import gymnasium

from offbeat.compat.skrl.envs.wrappers.gymnasium_envs import GymnasiumVector
from offbeat.compat.skrl.framework import logger
from offbeat.errors import UsageError

OTHERS = (
    *("gym", "isaaclab", "isaaclab-single-agent", "isaaclab-multi-agent", "mani-skill", "pettingzoo", "playground"),
)


def wrapped(env: Any, wrapper: str, verbose: bool, base: Any, kind: type[GymnasiumVector]) -> Any:
    """The environment as it is if it is a wrapper of the class `base` already, or else in a wrapper of `kind`."""
    if isinstance(env, base):
        return env
    if wrapper in OTHERS:
        raise UsageError(f"wrapper={wrapper!r} is not there yet; use gymnasium, or subclass Wrapper")
    if wrapper not in ("auto", "gymnasium"):
        raise UsageError(f"wrapper={wrapper!r} is unknown; use auto or gymnasium")
    if not isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise UsageError(
            f"wrap_env: {type(env).__name__} is no Gymnasium environment and no VectorEnv; subclass Wrapper for it"
        )
    if verbose:
        logger.info("Environment wrapper: Gymnasium")
    return kind(env)
