"""Models: `Model` and the mixins that make it act."""

from typing import Any

from offbeat.compat.skrl.framework import not_there_yet
from offbeat.compat.skrl.models.torch.deterministic import DeterministicMixin
from offbeat.compat.skrl.models.torch.gaussian import GaussianMixin
from offbeat.compat.skrl.models.torch.model import Model
from offbeat.compat.skrl.models.torch.multivariate_gaussian import MultivariateGaussianMixin

__all__ = ["DeterministicMixin", "GaussianMixin", "Model", "MultivariateGaussianMixin"]


def __getattr__(name: str) -> Any:
    if name in ("CategoricalMixin", "MultiCategoricalMixin", "TabularMixin"):
        raise not_there_yet(name, "a Box action space with GaussianMixin; SAC here has no other actions")
    raise AttributeError(f"offbeat.compat.skrl.models.torch has no {name!r}; it has {', '.join(__all__)}")
