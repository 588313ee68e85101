"""Settings that have no effect together with others: one table, and the check that refuses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from offbeat import flat
from offbeat.algorithms.configs.groups import own_schedule, schedules_of
from offbeat.errors import UsageError

Values = Mapping[str, Any]


class IdleSetting(UsageError):
    """A setting that has no effect together with the others. name: which one."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Idle:
    """names: settings without effect if `when` holds of the flat values. why: the reason. instead: the remedy.

    A user's own config may have some of these names and not the others.
    """

    names: tuple[str, ...]
    when: Callable[[Values], bool]
    why: str
    instead: str | None = None


def _own_networks(values: Values) -> bool:
    """Whether all networks of an algorithm are the user's own."""
    own = [values[name] for name in ("actor", "critic") if name in values]
    return bool(own) and all(network is not None for network in own)


IDLE = (
    Idle(
        ("critic_hidden", "critic_layer_norm", "critic_dropout"),
        lambda values: values.get("critic") is not None,
        "your own critic has its own layers",
    ),
    Idle(("hidden", "activation", "layer_norm"), _own_networks, "your own networks have their own layers"),
    Idle(("dueling",), lambda values: values.get("critic") is not None, "your own critic has its own outputs"),
    Idle(
        ("observation_clip",),
        lambda values: not values.get("normalise_observations", True),
        "normalise_observations is off",
        "set normalise_observations",
    ),
    Idle(
        ("temperature_learning_rate", "temperature_schedule"),
        lambda values: type(values.get("temperature")).__name__ == "Fixed",
        "temperature is fixed",
        "use temperature learned",
    ),
    Idle(
        ("target_noise_clip",), lambda values: values.get("target_noise") == 0, "target_noise is 0", "set target_noise"
    ),
    Idle(
        ("entropy_schedule",),
        lambda values: values.get("entropy_coefficient") == 0,
        "entropy_coefficient is 0",
        "set entropy_coefficient",
    ),
    Idle(
        ("normalise_over",),
        lambda values: not values["normalise_advantages"],
        "normalise_advantages is off",
        "set normalise_advantages",
    ),
    Idle(
        ("adam_betas", "adam_epsilon"),
        lambda values: values.get("optimiser", "adam") not in ("adam", "adamw"),
        "optimiser is neither adam nor adamw",
        "use one of these",
    ),
    Idle(
        ("weight_decay",),
        lambda values: values.get("optimiser", "adamw") != "adamw",
        "optimiser is not adamw",
        "use optimiser adamw",
    ),
    Idle(
        ("schedule_kwargs",),
        lambda values: not any(own_schedule(schedule) for schedule in schedules_of(values).values()),
        "no schedule is a callable of your own",
        "set one to module:callable",
    ),
    Idle(
        ("tau",), lambda values: values.get("target_every", 1) is None, "there is no target network", "set target_every"
    ),
)


def refuse_idle(config: Any) -> None:
    """Raises IdleSetting for the first setting that has no effect and is not at its default."""
    values, defaults = flat.values(config), flat.defaults(type(config))
    for idle in IDLE:
        for name in (name for name in idle.names if name in defaults):
            if values[name] != defaults[name] and idle.when(values):
                remedy = f", or {idle.instead}" if idle.instead else ""
                raise IdleSetting(
                    name, f"{name}={values[name]!r} has no effect, because {idle.why}: leave {name} out{remedy}"
                )
