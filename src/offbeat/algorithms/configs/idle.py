"""Settings that have no effect in some company: one table, and the refusal of what is set there all the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offbeat.errors import UsageError


class IdleSetting(UsageError):
    """A setting that has no effect with the others. name: which one."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Idle:
    """names: settings without effect where `when` holds. why: what makes them so. instead: how they would have one."""

    names: tuple[str, ...]
    when: Callable[[Any], bool]
    why: str
    instead: str | None = None


def _own_networks(config: Any) -> bool:
    """Whether all of an algorithm's networks are the user's own."""
    return all(getattr(config, name) is not None for name in ("actor", "critic") if hasattr(config, name))


IDLE = (
    Idle(
        ("critic_hidden", "critic_layer_norm", "critic_dropout"),
        lambda config: config.critic is not None,
        "a critic of your own has its own layers",
    ),
    Idle(("hidden", "activation", "layer_norm"), _own_networks, "networks of your own have their own layers"),
    Idle(("dueling",), lambda config: config.critic is not None, "a critic of your own has its own heads"),
    Idle(
        ("observation_clip",),
        lambda config: not config.normalise_observations,
        "normalise_observations is off",
        "set normalise_observations",
    ),
    Idle(
        ("temperature_learning_rate", "temperature_schedule"),
        lambda config: type(config.temperature).__name__ == "Fixed",
        "temperature is fixed",
        "use temperature learned",
    ),
    Idle(("target_noise_clip",), lambda config: config.target_noise == 0, "target_noise is 0", "set target_noise"),
    Idle(
        ("entropy_schedule",),
        lambda config: config.entropy_coefficient == 0,
        "entropy_coefficient is 0",
        "set entropy_coefficient",
    ),
    Idle(
        ("adam_epsilon",),
        lambda config: getattr(config, "optimiser", "adam") not in ("adam", "adamw"),
        "optimiser is neither adam nor adamw",
        "use one of these",
    ),
    Idle(("tau",), lambda config: config.target_every is None, "there is no target network", "set target_every"),
)


def refuse_idle(config: Any) -> None:
    """Raises IdleSetting for the first setting that has no effect and is not at its default."""
    defaults = {each.name: each.default for each in dataclasses.fields(config)}
    for idle in IDLE:
        for name in (name for name in idle.names if name in defaults):
            value = getattr(config, name)
            if value != defaults[name] and idle.when(config):
                remedy = f", or {idle.instead}" if idle.instead else ""
                raise IdleSetting(name, f"{name}={value!r} has no effect, because {idle.why}: leave {name} out{remedy}")
