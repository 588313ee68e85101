"""Exploration wrappers of policies: noise on continuous actions, epsilon-greedy choices of discrete actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from offbeat.policies.protocol import Policy
from offbeat.types import Array, EnvSpec, Weights


class Exploring:
    """Adds exploration to a policy's actions if it gets a random generator; without one, acts like the policy.

    The memory of correlated noise is the last part of the carry, so the collector resets it with each episode and
    checkpoints save it. first_env, total_envs: as for `scales`.
    """

    def __init__(
        self,
        policy: Policy,
        description: Mapping[str, Any],
        spec: EnvSpec,
        first_env: int = 0,
        total_envs: int | None = None,
    ) -> None:
        self._policy, self._spec = policy, spec
        self._disturbance: Disturbance = DISTURBANCES[description["kind"]](description, spec, first_env, total_envs)

    def load(self, weights: Weights) -> None:
        self._policy.load(weights)

    def initial_carry(self, num_envs: int) -> Array:
        own = np.zeros((num_envs, self._disturbance.memory), np.float32)
        return np.concatenate((self._policy.initial_carry(num_envs), own), axis=1)

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        inner = carry.shape[1] - self._disturbance.memory
        action, policy_carry, extras = self._policy.act(obs, carry[:, :inner], rng, step, mask)
        if rng is None:
            return action, np.concatenate((policy_carry, carry[:, inner:]), axis=1), extras
        action, memory = self._disturbance.disturb(action, carry[:, inner:], rng, step, mask)
        return action, np.concatenate((policy_carry, memory), axis=1), extras


def scales(description: Mapping[str, Any], count: int, first_env: int = 0, total_envs: int | None = None) -> Array:
    """The noise scale of each environment (N, 1): a geometric sequence from `scale` to `scale * spread`.

    Returns those of `count` environments from first_env on; the sequence has `total_envs` (default count) entries.
    """
    powers = np.linspace(0.0, 1.0, total_envs or count)[first_env : first_env + count, None]
    return (description["scale"] * description["spread"] ** powers).astype(np.float32)


class GaussianNoise:
    memory = 0

    def __init__(
        self, description: Mapping[str, Any], spec: EnvSpec, first_env: int = 0, total_envs: int | None = None
    ) -> None:
        self._scales = partial(scales, description, first_env=first_env, total_envs=total_envs)

    def disturb(
        self, action: Array, memory: Array, rng: np.random.Generator, step: int, mask: Array | None = None
    ) -> tuple[Array, Array]:
        noise = self._scales(len(action)) * rng.standard_normal(action.shape, np.float32)
        return np.clip(action + noise, -1.0, 1.0), memory


class OrnsteinUhlenbeckNoise:
    """x <- x - pull * x * dt + scale * sqrt(dt) * normal: the memory is x (N, A)."""

    def __init__(
        self, description: Mapping[str, Any], spec: EnvSpec, first_env: int = 0, total_envs: int | None = None
    ) -> None:
        self._description, self.memory = description, spec.action_size
        self._scales = partial(scales, description, first_env=first_env, total_envs=total_envs)

    def disturb(
        self, action: Array, memory: Array, rng: np.random.Generator, step: int, mask: Array | None = None
    ) -> tuple[Array, Array]:
        pull, time_step = self._description["pull"], self._description["time_step"]
        kick = self._scales(len(action)) * rng.standard_normal(action.shape, np.float32)
        memory = (memory * (1.0 - pull * time_step) + kick * math.sqrt(time_step)).astype(np.float32)
        return np.clip(action + memory, -1.0, 1.0), memory


class RandomChoice:
    memory = 0

    def __init__(
        self, description: Mapping[str, Any], spec: EnvSpec, first_env: int = 0, total_envs: int | None = None
    ) -> None:
        self._description, self._spec = description, spec

    def epsilon(self, step: int) -> float:
        """The probability of a random action after `step` environment steps, over all environments."""
        initial, final = self._description["initial"], self._description["final"]
        progress = min(1.0, step / self._description["steps"])
        if self._description["decay"] == "linear":
            return float(initial + (final - initial) * progress)
        return float(initial * (final / initial) ** progress)

    def disturb(
        self, action: Array, memory: Array, rng: np.random.Generator, step: int, mask: Array | None = None
    ) -> tuple[Array, Array]:
        random = rng.random((len(action), 1)) < self.epsilon(step)
        return np.where(random, self._spec.random_actions(rng, len(action), mask), action), memory


Disturbance = GaussianNoise | OrnsteinUhlenbeckNoise | RandomChoice
DISTURBANCES: dict[str, type[Disturbance]] = {
    "gaussian": GaussianNoise,
    "ornstein_uhlenbeck": OrnsteinUhlenbeckNoise,
    "epsilon_greedy": RandomChoice,
}
