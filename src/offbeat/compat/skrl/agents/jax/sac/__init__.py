"""Soft actor-critic."""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("agents.jax.sac"):
    from offbeat.compat.skrl.agents.jax.sac.sac import SAC
    from offbeat.compat.skrl.agents.sac.sac_cfg import SAC_CFG

__all__ = ["SAC", "SAC_CFG"]
