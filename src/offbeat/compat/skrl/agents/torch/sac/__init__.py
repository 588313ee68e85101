"""Soft actor-critic."""

from typing import Any

from offbeat.compat.skrl.agents.torch.sac.sac import SAC
from offbeat.compat.skrl.agents.torch.sac.sac_cfg import SAC_CFG
from offbeat.compat.skrl.framework import not_there_yet

__all__ = ["SAC", "SAC_CFG"]


def __getattr__(name: str) -> Any:
    if name == "SAC_RNN":
        raise not_there_yet(
            "SAC_RNN", "SAC with models that have no memory, or stack past observations in the environment"
        )
    raise AttributeError(f"offbeat.compat.skrl.agents.torch.sac has no {name!r}; it has SAC and SAC_CFG")
