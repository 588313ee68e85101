"""Checks of a whole config, whichever groups it is composed of: ranges, schedules, and settings without effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from offbeat import flat
from offbeat.algorithms.configs.groups import NETWORKS, SCHEDULES, own_schedule, recurrence_of, schedules_of
from offbeat.coercion import suggestion
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges

Values = Mapping[str, Any]


class IdleSetting(UsageError):
    """A setting that has no effect together with the others. name: which one."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Idle(NamedTuple):
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


def _is_mlp(values: Values) -> bool:
    return bool(values.get("network", "mlp") == "mlp")


IDLE = (
    Idle(
        ("recurrent_size", "recurrent_layers", "sequence_length", "burn_in", "start_state"),
        _is_mlp,
        "network is mlp",
        "set network to rnn, gru or lstm",
    ),
    Idle(
        ("recurrent_size", "recurrent_layers"),
        lambda values: values.get("network", "mlp") not in NETWORKS,
        "your own recurrent module has its own layers",
    ),
    Idle(
        ("gradients", "compile"),
        lambda values: not _is_mlp(values),
        "recurrent networks have one way to compute gradients",
        "use network mlp",
    ),
    Idle(
        ("critic_hidden", "critic_layer_norm", "critic_dropout"),
        lambda values: values.get("critic") is not None,
        "your own critic has its own layers",
    ),
    Idle(("hidden", "activation", "layer_norm"), _own_networks, "your own networks have their own layers"),
    Idle(("dueling",), lambda values: values.get("critic") is not None, "your own critic has its own outputs"),
    Idle(
        ("temperature_learning_rate", "temperature_schedule"),
        lambda values: type(values.get("temperature")).__name__ == "Fixed",
        "temperature is fixed",
        "use temperature learned",
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
        ("tf32",),
        lambda values: values.get("precision", "float32") != "float32",
        "it changes float32 products only",
        "use precision float32",
    ),
    Idle(
        ("ray_address", "ray_cpus", "ray_resources", "ray_placement", "ray_working_dir"),
        lambda values: values.get("collector") != "ray",
        "collector is not ray",
        "use collector ray",
    ),
    Idle(
        ("devices",), lambda values: values.get("backend") == "torch", "torch learns on one device", "use backend jax"
    ),
)
"""Beside the settings that name the one that they need in `setting(..., needs=...)`."""


def check_config(config: Any, run: Values | None = None) -> None:
    """Raises UsageError for a value out of range, an unknown schedule, or a setting without effect.

    run: the settings of the run, some of which those of `config` may need; None where there is no run yet.
    """
    check_ranges(config)
    for name, schedule in schedules_of(flat.values(config)).items():
        if isinstance(schedule, str) and schedule not in SCHEDULES and not own_schedule(schedule):
            raise UsageError(
                f"{name}={schedule!r} is none of {', '.join(SCHEDULES)}, nor a module:callable"
                f"{suggestion(schedule, SCHEDULES)}"
            )
    _check_network(config)
    _check_rollout_sequences(config)
    refuse_idle(config, run or {})


def _check_network(config: Any) -> None:
    """Raises UsageError for an unknown kind of network, and for networks of the user's own beside a recurrent trunk."""
    network, values = recurrence_of(config).network, flat.values(config)
    if isinstance(network, str) and network not in NETWORKS and ":" not in network:
        raise UsageError(
            f"network={network!r} is none of {', '.join(NETWORKS)}, nor a module:callable"
            f"{suggestion(network, NETWORKS)}"
        )
    own = [name for name in ("actor", "critic") if values.get(name) is not None]
    if own and recurrence_of(config).recurrent:
        raise UsageError(
            f"network={network!r} gives every network a recurrent trunk, but {own[0]} is a network of your own, which "
            f"has none: leave one of them out. A recurrent module of your own is set by network=module:callable"
        )


def _check_rollout_sequences(config: Any) -> None:
    """Raises UsageError for rollouts of recurrent networks that are not made of whole sequences."""
    recurrence = recurrence_of(config)
    if not recurrence.recurrent or not hasattr(config, "rollouts"):
        return
    steps, length = config.rollouts.rollout_steps, recurrence.sequence_length
    if steps % length:
        near = max(each for each in range(1, min(steps, length) + 1) if steps % each == 0)
        raise UsageError(
            f"rollout_steps={steps} cannot be divided into sequences of sequence_length={length} steps: use a multiple "
            f"of it, or sequence_length={near}"
        )


def refuse_idle(config: Any, run: Values) -> None:
    """Raises IdleSetting for the first setting that has no effect and is not at its default."""
    values, defaults = flat.values(config), flat.defaults(type(config))
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    for leaf in flat.leaves(type(config)):
        needed = leaf.metadata["needs"]
        if leaf.name in changed and needed is not None:
            _check_needed(leaf.name, values[leaf.name], needed, {**run, **values})
    for idle in IDLE:
        for name in idle.names:
            if name in changed and idle.when(values):
                remedy = f", or {idle.instead}" if idle.instead else ""
                raise IdleSetting(
                    name, f"{name}={values[name]!r} has no effect, because {idle.why}: leave {name} out{remedy}"
                )


def _check_needed(name: str, value: Any, needed: str, values: Values) -> None:
    """Raises IdleSetting if a setting is off that another one needs."""
    off = values.get(needed, "unknown")
    if off or (needed == "collectors" and values["collector"] != "processes"):  # a collector of the user's own
        return
    wanted = f"{needed} >= 1" if type(off) is int else needed
    raise IdleSetting(
        name, f"{name}={value!r} needs {wanted}, but {needed} is {off}: set {needed}, or leave {name} out"
    )
