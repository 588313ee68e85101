"""The path that older scripts import `wrap_env` from."""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("envs.jax"):
    from offbeat.compat.skrl.envs.wrappers.jax import Wrapper, wrap_env

__all__ = ["Wrapper", "wrap_env"]
