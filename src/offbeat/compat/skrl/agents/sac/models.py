"""Which models an agent needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat.compat.skrl.agents.sac.settings import MODELS
from offbeat.errors import UsageError


def check_names(models: Any, training: bool) -> list[str]:
    """Raises UsageError where a model is missing; returns those that are not needed and not there.

    training: whether the critics are needed.
    """
    if not isinstance(models, Mapping):
        raise UsageError(
            f"models={models!r} must be a dictionary with the key policy, and for training {', '.join(MODELS[1:])}"
        )
    if models.get("policy") is None:
        raise UsageError(f"models has {sorted(models) or 'nothing'}, but SAC needs policy: add models['policy']")
    missing = [name for name in MODELS if models.get(name) is None]
    if missing and (training or len(missing) < len(MODELS) - 1):
        raise UsageError(
            f"models has no {missing[0]!r}: training needs {', '.join(MODELS)}; for evaluation give policy and no "
            "memory"
        )
    return missing
