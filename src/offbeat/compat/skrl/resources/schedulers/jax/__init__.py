"""Learning-rate schedulers. Any function of optax that returns a schedule can be used as well."""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("resources.schedulers.jax"):
    from offbeat.compat.skrl.resources.schedulers.jax.kl_adaptive import KLAdaptiveLR, KLAdaptiveRL, kl_adaptive

__all__ = ["KLAdaptiveLR", "KLAdaptiveRL", "kl_adaptive"]
