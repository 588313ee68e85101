"""Checks of an algorithm's arguments, before anything is made."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.sampler.given_policy import check_policy, try_policy
from offbeat.errors import UsageError

_WHOLE = ("steps_per_epoch", "n_train_steps", "buffer_batch_size", "rollout_batch_size", "min_buffer_size")
_NUMBERS = (*_WHOLE, "max_path_length", "max_eval_path_length", "discount", "reward_scale")
_AT_LEAST_ONE = tuple(name for name in _NUMBERS if name not in ("min_buffer_size", "discount", "reward_scale"))
_OF_RUNNERS = ("step_epochs", "obtain_samples", "get_env_copy")


def check_arguments(algo: Any) -> None:
    """UsageError for an argument of OffPolicyRLAlgorithm that could never learn."""
    own_spec(algo.env_spec)
    check_policy(algo.policy, "policy")
    if algo.exploration_policy is not None:
        check_policy(algo.exploration_policy, "exploration_policy")
    check_buffer(algo.replay_buffer, "add_path")
    for name in _NUMBERS:
        value, kind = getattr(algo, name), Integral if name in _WHOLE else Real
        if value is not None and not isinstance(value, kind):
            number = "a whole number" if name in _WHOLE else "a number"
            raise UsageError(f"{name}={value!r} is a {type(value).__name__}; it must be {number}")
    for name in _AT_LEAST_ONE:
        value = getattr(algo, name)
        if value is not None and value < 1:
            raise UsageError(f"{name}={value} is out of range: it must be at least 1")
    if not 0.0 <= algo.discount <= 1.0:
        raise UsageError(f"discount={algo.discount} is out of range: it must be from 0 to 1")
    if algo.min_buffer_size < 0:
        raise UsageError(f"min_buffer_size={algo.min_buffer_size} is out of range: it must be at least 0")
    capacity = getattr(algo.replay_buffer, "capacity_in_transitions", None)
    if capacity is not None and algo.min_buffer_size > capacity:
        raise UsageError(
            f"min_buffer_size={algo.min_buffer_size} is more than the {capacity} transitions that replay_buffer holds, "
            "so learning would never begin; use a smaller one, or a larger capacity_in_transitions"
        )


def check_actions(algo: Any) -> None:
    """UsageError for a policy whose actions the environment cannot take."""
    for name in ("policy", "exploration_policy"):
        if getattr(algo, name) is not None:
            try_policy(getattr(algo, name), own_spec(algo.env_spec), name)


def check_buffer(replay_buffer: Any, *methods: str) -> None:
    for name in methods:
        if not callable(getattr(replay_buffer, name, None)):
            raise UsageError(
                f"replay_buffer is a {type(replay_buffer).__name__} without {name}; use a PathBuffer, or add the method"
            )
    if not hasattr(replay_buffer, "n_transitions_stored"):
        raise UsageError(
            f"replay_buffer is a {type(replay_buffer).__name__} without n_transitions_stored, the number of "
            "transitions in it; use a PathBuffer, or add the property"
        )


def check_runner(runner: Any) -> None:
    for name in _OF_RUNNERS:
        if not callable(getattr(runner, name, None)):
            raise UsageError(f"runner is a {type(runner).__name__} without {name}; use a LocalRunner")
