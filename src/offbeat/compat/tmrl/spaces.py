"""The spaces of a training: from a dummy environment or a pair, and as the spec that our learner and replay need."""

from __future__ import annotations

from typing import Any

from offbeat.envs.spaces import make_spec, read_action_space, read_observation_space
from offbeat.errors import UsageError
from offbeat.types import EnvSpec


def spaces_of(env_cls: Any) -> tuple[Any, Any]:
    """Observation and action space of `env_cls`: a pair of them, or a class whose environment is made and closed."""
    from gymnasium import Space

    if isinstance(env_cls, tuple | list):
        if len(env_cls) != 2 or not all(isinstance(space, Space) for space in env_cls):
            raise UsageError(
                f"env_cls={env_cls!r:.80} is not a pair of spaces; pass (observation_space, action_space) or the class "
                "of an environment"
            )
        return env_cls[0], env_cls[1]
    if not callable(env_cls):
        raise UsageError(
            f"env_cls={env_cls!r:.80} is neither a class nor a pair of spaces; pass the class of an environment or "
            "(observation_space, action_space)"
        )
    env = env_cls()
    try:
        return env.observation_space, env.action_space
    except AttributeError as error:
        raise UsageError(f"env_cls made a {type(env).__name__}: {error}; pass the class of an environment") from error
    finally:
        getattr(env, "close", lambda: None)()


def spec_of_spaces(observation_space: Any, action_space: Any) -> EnvSpec:
    layouts = read_observation_space(observation_space)
    return make_spec("tmrl", layouts, read_action_space(action_space), None, None)
