"""`wrap_env`: environments behind tensors."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium

from offbeat.compat.skrl.envs.wrappers.torch.gymnasium_envs import GymnasiumWrapper
from offbeat.compat.skrl.envs.wrappers.torch.wrapper import Wrapper
from offbeat.compat.skrl.framework import logger, not_there_yet
from offbeat.errors import UsageError

__all__ = ["Wrapper", "wrap_env"]

_OTHERS = (
    *("gym", "isaaclab", "isaaclab-single-agent", "isaaclab-multi-agent", "mani-skill", "pettingzoo", "playground"),
)


def wrap_env(
    env: Any,
    wrapper: Literal[
        "auto",
        "gym",
        "gymnasium",
        "isaaclab",
        "isaaclab-single-agent",
        "isaaclab-multi-agent",
        "mani-skill",
        "pettingzoo",
        "playground",
    ] = "auto",
    verbose: bool = True,
) -> Wrapper:
    """The environment behind tensors. Here are Gymnasium's; for others, subclass `Wrapper`.

    wrapper: auto, or gymnasium. verbose: whether to log the choice.
    """
    if isinstance(env, Wrapper):
        return env
    if wrapper in _OTHERS:
        raise UsageError(
            f"wrapper={wrapper!r} is not there yet; use gymnasium, or subclass envs.wrappers.torch.Wrapper"
        )
    if wrapper not in ("auto", "gymnasium"):
        raise UsageError(f"wrapper={wrapper!r} is unknown; use auto or gymnasium")
    if not isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise UsageError(
            f"wrap_env: {type(env).__name__} is no Gymnasium environment and no VectorEnv; subclass Wrapper for it"
        )
    if verbose:
        logger.info("Environment wrapper: Gymnasium")
    return GymnasiumWrapper(env)


def __getattr__(name: str) -> Any:
    if name == "MultiAgentEnvWrapper":
        raise not_there_yet(name, "Wrapper, with one agent, or several agents with scopes")
    raise AttributeError(f"offbeat.compat.skrl.envs.wrappers.torch has no {name!r}; it has {', '.join(__all__)}")
