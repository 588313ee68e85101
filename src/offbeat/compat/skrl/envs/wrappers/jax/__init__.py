"""`wrap_env`: environments behind JAX arrays."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from offbeat.compat.skrl.envs.wrappers.choice import wrapped
from offbeat.compat.skrl.envs.wrappers.gymnasium_envs import GymnasiumVector
from offbeat.compat.skrl.envs.wrappers.wrapper import AnyWrapper
from offbeat.compat.skrl.framework import needs_jax, not_there_yet

with needs_jax("envs.wrappers.jax"):
    from offbeat.compat.skrl.jax_arrays import JAX

__all__ = ["Wrapper", "wrap_env"]


class Wrapper(AnyWrapper):
    """To subclass: an environment, or a vector of N, whose observations, rewards and flags are arrays (N, size).

    A wrapper with `snapshot` and `restore`, as ours has them, is saved with an agent's checkpoints.
    """

    arrays = JAX


class GymnasiumWrapper(GymnasiumVector, Wrapper):
    """One Gymnasium environment, or a VectorEnv in any autoreset mode."""

    flag_dtype = np.int8


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
    return wrapped(env, wrapper, verbose, Wrapper, GymnasiumWrapper)


def __getattr__(name: str) -> Any:
    if name == "MultiAgentEnvWrapper":
        raise not_there_yet(name, "Wrapper, with one agent, or several agents with scopes")
    raise AttributeError(f"offbeat.compat.skrl.envs.wrappers.jax has no {name!r}; it has {', '.join(__all__)}")
