"""Models: `Model` and the mixins that make it act."""

from typing import Any

from offbeat.compat.skrl.framework import needs_jax, not_there_yet

with needs_jax("models.jax"):
    from offbeat.compat.skrl.models.jax.deterministic import DeterministicMixin
    from offbeat.compat.skrl.models.jax.gaussian import GaussianMixin
    from offbeat.compat.skrl.models.jax.model import Model, StateDict

__all__ = ["DeterministicMixin", "GaussianMixin", "Model", "StateDict"]


def __getattr__(name: str) -> Any:
    if name in ("CategoricalMixin", "MultiCategoricalMixin", "MultivariateGaussianMixin"):
        raise not_there_yet(f"{name} for JAX", "a Box action space with GaussianMixin; SAC here has no other actions")
    raise AttributeError(f"offbeat.compat.skrl.models.jax has no {name!r}; it has {', '.join(__all__)}")
