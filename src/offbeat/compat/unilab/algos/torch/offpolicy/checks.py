"""Checks of a runner's arguments, before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from offbeat.compat.unilab.algos.torch.offpolicy.actors import ALGORITHMS, build_actor, hidden_sizes
from offbeat.errors import UsageError


def check_numbers(**numbers: Any) -> None:
    """Refuses what is not a whole number of at least 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value or value < 1:
            raise UsageError(f"{name}={value!r} is out of range: it must be a whole number of at least 1")


def check_algorithm(algo_type: str, learner: Any) -> None:
    if algo_type not in ALGORITHMS:
        raise UsageError(f"algo_type={algo_type!r} is unknown; use {' or '.join(ALGORITHMS)}")
    own = getattr(learner, "algo_type", algo_type)
    if own != algo_type:
        raise UsageError(f"algo_type={algo_type!r} does not fit the learner, a {type(learner).__name__}; use {own!r}")


def check_normaliser(learner: Any, obs_normalization: bool) -> None:
    own = getattr(learner, "obs_normalizer", None)
    if obs_normalization and own is not None and not isinstance(own, nn.Identity):
        raise UsageError(
            "obs_normalization=True, but the learner has an obs_normalizer of its own, so observations would be "
            "normalised twice: switch one of them off"
        )


def check_threshold(threshold: int, capacity: int, replay_buffer_n: int, num_envs: int) -> None:
    if threshold > capacity:
        raise UsageError(
            f"replay holds {capacity} transitions (num_envs={num_envs} times replay_buffer_n={replay_buffer_n}), but "
            f"learning starts at {threshold} (the larger of batch_size and learning_starts * num_envs), so it would "
            f"never start; use replay_buffer_n >= {-(-threshold // num_envs)}, or a smaller batch_size"
        )


KEPT = {
    "env_name": "a run keeps its environment; env_cfg_override and sim_backend may change",
    "num_envs": "replay, interrupted episodes and random streams belong to these environments",
    "sync_collection": "the number of updates would no longer fit the number of steps",
    "env_steps_per_sync": "the number of updates would no longer fit the number of steps",
    "updates_per_step": "the number of updates would no longer fit the number of steps",
    "actor_hidden_dim": "the checkpoint holds weights for these networks",
    "obs_normalization": "the networks were trained with these statistics, or without them",
    "seed": "every random stream is part of the checkpoint",
}
"""A runner's parameters that a resumed run keeps, each with the reason."""


def check_kept(runner: Any, recorded: Mapping[str, Any], warmup_steps: int, log_dir: Any) -> None:
    """Refuses parameters that a run cannot be resumed with. recorded: our settings, of which its checkpoint was made.

    warmup_steps: our setting that follows from the runner's batch_size and learning_starts.
    """
    free = recorded["pace"] == "free"
    kept = {
        "env_name": recorded["env"].strip("<>").rpartition(":")[2],
        "num_envs": recorded["num_envs"],
        "sync_collection": not free,
        "env_steps_per_sync": runner.env_steps_per_sync if free else recorded["update_every"],
        "updates_per_step": recorded["updates_per_iteration"],
        "actor_hidden_dim": recorded["hidden"][0],
        "obs_normalization": recorded["normalise_observations"],
        "seed": recorded["seed"],
    }
    given = {name: getattr(runner, name) for name in kept} | {"env_name": runner.env_name.rpartition(":")[2]}
    if runner.seed is None:  # the one that was drawn when the run was begun
        given["seed"] = recorded["seed"]
    for name, value in kept.items():
        if given[name] != value:
            raise UsageError(
                f"{name}={given[name]!r} cannot change when a run is resumed: {KEPT[name]}; use {value!r}, or another "
                f"log_dir than {log_dir}"
            )
    if warmup_steps != recorded["warmup_steps"]:
        raise UsageError(
            f"batch_size={runner.batch_size} and learning_starts={runner.learning_starts} begin learning at "
            f"{runner.train_start_threshold} transitions, but the run in {log_dir} did not: the number of updates "
            "would no longer fit the number of steps; use those that it was begun with, or another log_dir"
        )


def acting_actor(
    learner: Any, algo_type: str, sizes: tuple[int, int], num_envs: int, hidden_dim: int, layer_norm: bool, options: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """The actor that acts, and the options for its `explore`. sizes: of observations and actions.

    For a learner of ours it is built from the arguments, and must fit; what `options` leave out is as in the learner's
    actor. A user's own actor is taken as it is.
    """
    actor = learner.actor
    if type(learner).__module__.startswith("offbeat.compat.unilab."):
        bounds = {name: getattr(actor, name) for name in ("log_std_min", "log_std_max")}
        built = build_actor(algo_type, *sizes, hidden_dim, layer_norm, num_envs=num_envs, **bounds | dict(options))
        mine, theirs = ({name: tuple(each.shape) for name, each in it.state_dict().items()} for it in (built, actor))
        if mine != theirs:
            raise UsageError(
                f"actor_hidden_dim={hidden_dim} (layers {hidden_sizes(hidden_dim)}) and use_layer_norm={layer_norm}, "
                f"for observations of size {sizes[0]} and actions of size {sizes[1]}, do not fit the learner's actor, "
                f"whose layers are {_widths(actor)}; make learner and runner with the same sizes"
            )
        return built, {}
    widths = _widths(actor)
    if len(widths) >= 4 and widths[:3] == (widths[0], widths[0] // 2, widths[0] // 4) and widths[0] != hidden_dim:
        raise UsageError(
            f"actor_hidden_dim={hidden_dim} means layers {hidden_sizes(hidden_dim)}, but learner.actor has "
            f"{widths[:3]}; use actor_hidden_dim={widths[0]}"
        )
    return actor, dict(options)


def _widths(actor: nn.Module) -> tuple[int, ...]:
    """Output sizes of an actor's linear layers."""
    ours = [parameter.shape[-1] for name, parameter in actor.named_parameters() if name.endswith("weight")]
    linear = [module.out_features for module in actor.modules() if isinstance(module, nn.Linear)]
    return tuple(linear or ours)
