"""Preprocessors of observations and states."""

from offbeat.compat.skrl.framework import needs_jax

with needs_jax("resources.preprocessors.jax"):
    from offbeat.compat.skrl.resources.preprocessors.jax.running_standard_scaler import RunningStandardScaler

__all__ = ["RunningStandardScaler"]
