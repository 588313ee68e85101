"""Which settings may change when a run is resumed, and why the others may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config
from offbeat.coercion import lost, text_of
from offbeat.errors import UsageError
from offbeat.settings import all_values, read, train_settings

_NETWORKS = "the checkpoint holds weights for these networks"
_PLACES = "replay, interrupted episodes and random streams depend on how environments are divided among collectors"
_PACE = "the number of updates would no longer fit the number of steps"
_BEGINNING = "it is only used when a run begins"
_STATISTICS = "the networks were trained with these statistics, or without them"
_TEMPERATURE = "the temperature is part of the checkpoint"

FIXED: dict[str, str] = {
    "env": "a run keeps its environment; env_kwargs may change",
    "env_wrapper": "a run keeps its environment; env_kwargs may change",
    "max_episode_steps": "an episode may be unfinished; env_kwargs may change",
    "state_key": _NETWORKS,
    "mask_key": "the transitions in replay have masks, or have none",
    "preset": "a run already holds every setting",
    "seed": "every random stream is part of the checkpoint",
    "init_from": _BEGINNING,
    "out": "a run stays where it is; move its directory instead",
    "name": "a run stays where it is; rename its directory instead",
    "backend": "convert the run first: offbeat convert RUN --backend jax|torch",
    "precision": "the checkpoint's arrays have this type",
    **dict.fromkeys(("num_envs", "collectors", "queue", "when_full", "rollout_steps"), _PLACES),
    **dict.fromkeys(("updates_per_step", "warmup_steps", "update_every", "pace"), _PACE),
    **dict.fromkeys(
        (
            *("hidden", "critic_hidden", "activation", "layer_norm", "critic_layer_norm", "critic_dropout", "critics"),
            *("dueling", "squash", "state_dependent_std", "optimiser"),
        ),
        _NETWORKS,
    ),
    "exploration": "its memory is part of the checkpoint; the fields of its kind (exploration_scale) may change",
    "exploration_make": "its memory is part of the checkpoint",
    **dict.fromkeys(("temperature", "temperature_initial", "temperature_value"), _TEMPERATURE),
    **dict.fromkeys(("normalise_observations", "preprocessor", "normalise_rewards"), _STATISTICS),
    "initial_log_std": _BEGINNING,
}
"""Settings that a resumed run keeps, each with the reason; all others may change."""


def changed(algorithm: str, recorded: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """A run's config with some settings changed, and a line for each change.

    recorded: as in a checkpoint's notes. `quiet` applies to one session and is not recorded.
    """
    settings = train_settings(algorithm)
    given = read(settings, changes)
    # A value that no file could hold has to be given again, and is not a change.
    again = {name: value for name, value in given.items() if name in _lost_keys(recorded)}
    known = read(settings, _without(recorded, {"algorithm", "quiet", *again}))
    before = settings_module.assemble(algorithm, known, again)
    after = settings_module.assemble(algorithm, known, given)
    old, new = (all_values(each) for each in (before, after))
    differing = [name for name in new if name != "quiet" and old.get(name) != new[name]]
    for name in (name for name in differing if name in FIXED):
        raise UsageError(_kept(name, text_of(new[name]), text_of(old.get(name))))
    return after, [f"changed: {name} from {text_of(old.get(name))} to {text_of(new[name])}" for name in differing]


def _lost_keys(recorded: Mapping[str, Any]) -> set[str]:
    """The flat keys whose values no file could hold; of a union (exploration), those of its fields."""
    found: set[str] = set()
    for name, value in recorded.items():
        if isinstance(value, Mapping) and "kind" in value:
            found |= {f"{name}_{field}" for field, entry in value.items() if lost(entry) is not None}
        elif lost(value) is not None:
            found.add(name)
    return found


def _without(recorded: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """What was recorded, without some flat keys."""
    return {
        name: {field: entry for field, entry in value.items() if f"{name}_{field}" not in names}
        if isinstance(value, Mapping) and "kind" in value
        else value
        for name, value in recorded.items()
        if name not in names
    }


def check_env_kept(given: Any, recorded: str) -> None:
    """Refuses another environment before it is made. If one of them has no name, their spaces are compared later."""
    if isinstance(given, str) and not recorded.startswith("<") and _id(given) != _id(recorded):
        raise UsageError(_kept("env", given, recorded))


def _id(name: str) -> str:
    return name.rpartition(":")[2]  # a module before an id only registers it


def _kept(name: str, given: str, recorded: str) -> str:
    return (
        f"{name}={given} cannot change when a run is resumed (it is {recorded}): {FIXED[name]}. "
        "Leave it out, or start a new run with init_from, which copies weights of the same shapes"
    )
