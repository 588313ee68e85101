"""The spaces of an environment."""

from __future__ import annotations

from typing import Any

from offbeat.compat.metarl.envs.flat_spaces import vectors_of, with_flat_dim
from offbeat.envs.spaces import make_spec, read_action_space, read_observation_space
from offbeat.errors import UsageError
from offbeat.types import EnvSpec as OwnSpec


class EnvSpec:
    """Observation and action space of an environment; both get `flat_dim`, `flatten` and `unflatten`."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space = with_flat_dim(observation_space, "observation_space")
        self.action_space = with_flat_dim(action_space, "action_space")

    @property
    def input_space(self) -> Any:
        """What goes into the environment: actions."""
        return self.action_space

    @property
    def output_space(self) -> Any:
        """What comes out of the environment: observations."""
        return self.observation_space

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EnvSpec):
            return False
        return (self.observation_space, self.action_space) == (other.observation_space, other.action_space)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EnvSpec({self.observation_space}, {self.action_space})"


def own_spec(env_spec: Any, name: str = "the environment") -> OwnSpec:
    """Offbeat's own spec of the same spaces; UsageError where env_spec has none, or spaces that are not supported."""
    for space in ("observation_space", "action_space"):
        if not hasattr(env_spec, space):
            raise UsageError(
                f"env_spec is a {type(env_spec).__name__} without {space}; pass env.spec of a MetaRLEnv, or an EnvSpec"
            )
    size, flat_dim = vectors_of(env_spec.observation_space), with_flat_dim(env_spec.observation_space, "space").flat_dim
    if size != flat_dim:
        raise UsageError(
            f"the observation space {env_spec.observation_space} has flat_dim {flat_dim}, but its vectors here have "
            f"{size} numbers; wrap the environment with gymnasium.wrappers.FlattenObservation"
        )
    layouts, bounds = read_observation_space(env_spec.observation_space), read_action_space(env_spec.action_space)
    return make_spec(name, layouts, bounds, None, None)
