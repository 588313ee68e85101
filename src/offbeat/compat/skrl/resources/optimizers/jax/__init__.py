"""Optimizers, for a user's own updates; SAC steps ours itself."""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("resources.optimizers.jax"):
    from offbeat.compat.skrl.resources.optimizers.jax.adam import Adam

__all__ = ["Adam"]
