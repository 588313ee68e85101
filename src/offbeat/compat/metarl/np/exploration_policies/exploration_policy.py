"""Policies that explore around another policy."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.experiment.deterministic import generator
from offbeat.compat.metarl.sampler.given_policy import read_actions
from offbeat.policies.exploration import Disturbance
from offbeat.types import Array


class ExplorationPolicy(abc.ABC):
    """A policy around another one, to subclass."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    @abc.abstractmethod
    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """An action with exploration, and further information."""

    @abc.abstractmethod
    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        """Actions for observations (N, flat_dim), and further information."""

    def reset(self, dones: Any = None) -> None:
        """Begins episodes. dones (N,) bool: in which environments; None in the only one."""
        self.policy.reset(dones)

    def get_param_values(self) -> Any:
        return self.policy.get_param_values()

    def set_param_values(self, params: Any) -> None:
        self.policy.set_param_values(params)


class Disturbed:
    """The actions of a policy with one of Offbeat's disturbances, whose memory (N, M) is reset with each episode.

    before (A,): added to actions in [-1, 1] before the disturbance. fresh (M,): the memory at an episode's start.
    """

    def __init__(self, env_spec: Any, disturbance: Any, before: Any = 0.0, fresh: Any = ()) -> None:
        self._spec = own_spec(env_spec)
        self._disturbance: Disturbance = disturbance
        self._before, self._fresh = np.asarray(before, np.float32), np.asarray(fresh, np.float32)
        self._memory: Array = np.zeros((0, len(self._fresh)), np.float32)
        self._rng = generator("exploration")

    def reset(self, dones: Any = None) -> None:
        over = np.atleast_1d(np.asarray([True] if dones is None else dones, bool))
        if len(over) != len(self._memory):
            self._memory = np.tile(self._fresh, (len(over), 1))
        self._memory[over] = self._fresh

    def actions(self, policy: Any, observations: Array, step: int = 0, *, singly: bool = False) -> Array:
        """Actions in the environment's units, (N, *shape). singly: as for `read_actions`."""
        count = len(observations)
        if len(self._memory) != count:
            self._memory = np.tile(self._fresh, (count, 1))
        own = self._spec.from_environment(read_actions(policy, observations, self._spec, "policy", singly=singly))
        action, self._memory = self._disturbance.disturb(own + self._before, self._memory, self._rng, step)
        return self._spec.to_environment(action)

    def action(self, policy: Any, observation: Any, step: int = 0) -> Any:
        """The action for one observation."""
        return self.actions(policy, np.asarray(observation)[None], step, singly=True)[0]
