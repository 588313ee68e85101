"""Settings of agents and of their experiment directory."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar

from offbeat.coercion import suggestion

Settings = TypeVar("Settings")


@dataclasses.dataclass(kw_only=True)
class ExperimentCfg:
    """What is written where. Intervals are in timesteps: 0 and less for never, `auto` for timesteps / 100 and / 10.

    directory: of all experiments, `runs` by default. experiment_name: by default date, time and the agent's class.
    store_separately: each module in a file of its own. wandb, wandb_kwargs: log to Weights & Biases, with these
    arguments for wandb.init.
    """

    directory: str = ""
    experiment_name: str = ""
    write_interval: int | Literal["auto"] = "auto"
    checkpoint_interval: int | Literal["auto"] = "auto"
    store_separately: bool = False
    wandb: bool = False
    wandb_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class AgentCfg:
    """Settings that every agent has."""

    experiment: ExperimentCfg = dataclasses.field(default_factory=ExperimentCfg)

    def validate(self) -> bool:
        """Whether the values are valid."""
        return True

    def expand(self) -> None:
        """Replaces single values by one for each network, where a setting has one for each."""


def settings_from(kind: type[Settings], given: Any) -> Settings:
    """Settings of this kind, from a dictionary or an object that has them; KeyError names the key that is wrong."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if isinstance(given, dict):
        for key in given:
            if key not in names:
                raise KeyError(f"{kind.__name__} has no configuration key {key!r}{suggestion(key, names)}")
        return kind(**given)
    for name in names:
        if not hasattr(given, name):
            raise KeyError(
                f"the configuration {type(given).__name__} has no key {name!r}, which {kind.__name__} has; set it"
            )
    found: Settings = given
    return found
