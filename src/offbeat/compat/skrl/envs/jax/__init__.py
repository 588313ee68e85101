"""The path that older scripts import `wrap_env` from."""

from offbeat.compat.skrl.envs.wrappers.jax import Wrapper, wrap_env

__all__ = ["Wrapper", "wrap_env"]
