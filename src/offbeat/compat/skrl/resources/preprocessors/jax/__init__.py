"""Preprocessors of observations and states."""

from offbeat.compat.skrl.resources.preprocessors.jax.running_standard_scaler import RunningStandardScaler

__all__ = ["RunningStandardScaler"]
