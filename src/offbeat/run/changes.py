"""Which settings may change when a run goes on, and why the others may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config
from offbeat.coercion import lost
from offbeat.errors import UsageError
from offbeat.settings import flat_values, read, train_settings

_NETWORKS = "the checkpoint's weights are of the networks that it describes"
_PLACES = "replay, interrupted episodes and random streams belong to the environments as they are shared out"
_PACE = "updates made and steps taken would no longer belong to each other"
_BEGINNING = "it says how a run begins"
_STATISTICS = "the networks have learned with these statistics, or without them"
_TEMPERATURE = "the temperature is part of the checkpoint"

FIXED: dict[str, str] = {
    "env": "the run belongs to its environment; env_kwargs may change",
    "env_wrapper": "the run belongs to its environment; env_kwargs may change",
    "max_episode_steps": "an episode may be on its way; env_kwargs may change",
    "state_key": _NETWORKS,
    "mask_key": "rows of replay have masks, or have none",
    "preset": "a run holds every setting already",
    "seed": "every random stream is part of the checkpoint",
    "init_from": _BEGINNING,
    "out": "a run stays where it is; move its directory instead",
    "name": "a run stays where it is; rename its directory instead",
    "precision": "the checkpoint's arrays have this type",
    **dict.fromkeys(("num_envs", "collectors", "queue", "when_full", "rollout_steps"), _PLACES),
    **dict.fromkeys(("updates_per_step", "warmup_steps"), _PACE),
    **dict.fromkeys(
        (
            *("hidden", "critic_hidden", "activation", "layer_norm", "critic_layer_norm", "critic_dropout", "critics"),
            *("dueling", "squash", "state_dependent_std", "optimiser"),
        ),
        _NETWORKS,
    ),
    "exploration": "its memory is part of the checkpoint; the fields of its kind (exploration_scale) may change",
    **dict.fromkeys(("temperature", "temperature_initial", "temperature_value"), _TEMPERATURE),
    **dict.fromkeys(("normalise_observations", "normalise_rewards"), _STATISTICS),
    "initial_log_std": _BEGINNING,
}
"""Settings that a resumed run keeps, each with the reason; all others may change."""


def changed(algorithm: str, recorded: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """A run's config with some settings changed, and a line for each that is another now.

    recorded: as in a checkpoint's notes. `quiet` is how one session prints, and is not remembered.
    """
    settings = train_settings(algorithm)
    given = read(settings, changes)
    # What no file could hold has to be given again, and is not a change.
    again = {name for name in changes if lost(recorded.get(name)) is not None}
    known = {name: value for name, value in recorded.items() if name not in {"algorithm", "quiet", *again}}
    before = settings_module.assemble(algorithm, read(settings, known))
    after = settings_module.assemble(algorithm, read(settings, known), given)
    old, new = (flat_values(each.run) | flat_values(each.learner) for each in (before, after))
    differing = [name for name in new if name != "quiet" and old.get(name) != new[name] and name not in again]
    text = settings_module.text_of
    for name in (name for name in differing if name in FIXED):
        raise UsageError(_kept(name, text(new[name]), text(old.get(name))))
    return after, [f"changed: {name} from {text(old.get(name))} to {text(new[name])}" for name in differing]


def check_env_kept(given: Any, recorded: str) -> None:
    """Refuses another environment before it is made; where either has no name of its own, spaces are compared later."""
    if isinstance(given, str) and not recorded.startswith("<") and _id(given) != _id(recorded):
        raise UsageError(_kept("env", given, recorded))


def _id(name: str) -> str:
    return name.rpartition(":")[2]  # a module before an id only registers it


def _kept(name: str, given: str, recorded: str) -> str:
    return (
        f"{name}={given} cannot change when a run goes on (it is {recorded}): {FIXED[name]}. "
        "Leave it out, or start a new run; its init_from takes over weights of the same shapes"
    )
