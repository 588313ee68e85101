"""The policy to subclass."""

from __future__ import annotations

import abc
from typing import Any


class Policy(abc.ABC):
    """Chooses an action for an observation (flat_dim,).

    `get_actions`, for several observations at once, is optional: without it, `get_action` is called for each.
    """

    def __init__(self, env_spec: Any) -> None:
        self._env_spec = env_spec

    @abc.abstractmethod
    def get_action(self, observation: Any) -> Any:
        """The action, or (action, dict of further information)."""

    def reset(self, dones: Any = None) -> None:  # noqa: B027 - a policy without a memory has nothing to do
        """Called where episodes begin. dones (N,) bool: in which environments; None in the only one."""

    @property
    def observation_space(self) -> Any:
        return self._env_spec.observation_space

    @property
    def action_space(self) -> Any:
        return self._env_spec.action_space

    def log_diagnostics(self, paths: list[dict[str, Any]]) -> None:  # noqa: B027
        """Logs what the paths say about this policy."""

    @property
    def state_info_keys(self) -> list[str]:
        return []
