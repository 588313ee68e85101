"""Policies as torch modules."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.compat.metarl.torch.modules import MLPModule
from offbeat.errors import UsageError
from offbeat.types import Array


class Policy(nn.Module, abc.ABC):
    """A policy to subclass, with `get_action` and `get_actions`."""

    def __init__(self, env_spec: Any, name: str) -> None:
        super().__init__()
        self._env_spec, self._name = env_spec, name

    @abc.abstractmethod
    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """The action at an observation (O,), and further information."""

    @abc.abstractmethod
    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        """The actions at observations (N, O), and further information."""

    def reset(self, dones: Any = None) -> None:
        """Called where episodes begin. dones (N,) bool: in which environments; None in the only one."""

    @property
    def observation_space(self) -> Any:
        return self._env_spec.observation_space

    @property
    def action_space(self) -> Any:
        return self._env_spec.action_space

    @property
    def name(self) -> str:
        return self._name

    @property
    def vectorized(self) -> bool:
        return True

    def get_param_values(self) -> dict[str, Any]:
        return dict(self.state_dict())

    def set_param_values(self, state_dict: dict[str, Any]) -> None:
        self.load_state_dict(state_dict)

    def log_diagnostics(self, paths: list[dict[str, Any]]) -> None:
        """Logs what the paths say about this policy."""


class DeterministicMLPPolicy(Policy):
    """One action for each observation: an MLP whose output is the action, in the environment's units.

    kwargs: of MLPModule, such as hidden_sizes and output_nonlinearity.
    """

    def __init__(self, env_spec: Any, name: str = "DeterministicMLPPolicy", **kwargs: Any) -> None:
        super().__init__(env_spec, name)
        self.mlp = MLPModule(env_spec.observation_space.flat_dim, env_spec.action_space.flat_dim, **kwargs)

    def forward(self, observations: Tensor) -> Tensor:
        actions: Tensor = self.mlp(observations)
        return actions

    def get_action(self, observation: Any) -> tuple[Array, dict[str, Any]]:
        actions, infos = self.get_actions(np.asarray(observation)[None])
        return actions[0], infos

    def get_actions(self, observations: Any) -> tuple[Array, dict[str, Any]]:
        with torch.no_grad():
            return self(_inputs(self, observations)).cpu().numpy(), {}


class DiscreteQfDerivedPolicy(Policy):
    """The action of the largest value. qf: a module from observations (B, O) to values (B, actions)."""

    def __init__(self, env_spec: Any, qf: nn.Module, name: str = "DiscreteQfDerivedPolicy") -> None:
        if not hasattr(env_spec.action_space, "n"):
            raise UsageError(
                f"env_spec has the action space {env_spec.action_space}; this policy needs Discrete actions"
            )
        super().__init__(env_spec, name)
        self.qf = qf

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        actions, infos = self.get_actions(np.asarray(observation)[None])
        return actions[0], infos

    def get_actions(self, observations: Any) -> tuple[Array, dict[str, Any]]:
        with torch.no_grad():
            best = self.qf(_inputs(self.qf, observations)).argmax(1).cpu().numpy()
        return best + int(getattr(self.action_space, "start", 0)), {}


def _inputs(module: nn.Module, observations: Any) -> Tensor:
    """Observations as the module's parameters are: dtype and device."""
    like = next(module.parameters())
    return torch.as_tensor(np.asarray(observations), dtype=like.dtype, device=like.device)
