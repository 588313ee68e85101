"""A learner's actor as a policy that acts for our collectors, in this process or in another."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.torch.seeding import seeded
from offbeat.errors import UsageError
from offbeat.policies import Policy
from offbeat.types import Array, EnvSpec, Weights

_CPU = torch.device("cpu")


def explore(actor: Any, obs: Tensor, dones: Tensor, deterministic: bool, options: Mapping[str, Any]) -> Tensor:
    """Actions (N, A) of an actor: `explore(obs, dones=, deterministic=)` where it has one, else its output."""
    if hasattr(actor, "explore"):
        action: Tensor = actor.explore(obs, dones=dones, deterministic=deterministic, **options)
        return action
    output: Tensor = actor(obs, **options)
    return output


class ActorPolicy:
    """Acts with a copy of the learner's actor. carry (N, 1 + M): 1 where an episode begins, and the actor's own memory.

    An actor names its memory in `carried`: buffers (N, ...) without a place in its state dict. least: rows that the
    actor gets at least, because its own buffers may have one for each environment; rows of zeros are added.
    """

    def __init__(self, actor: nn.Module, options: Mapping[str, Any], least: int = 1) -> None:
        self._actor, self._options, self._least = copy.deepcopy(actor).to("cpu").eval(), dict(options), least
        self._carried: tuple[str, ...] = tuple(getattr(actor, "carried", ()))
        self._shapes = [getattr(actor, name).shape[1:] for name in self._carried]
        self._normaliser: tuple[Tensor, Tensor, float] | None = None

    def load(self, weights: Weights) -> None:
        self._actor.load_state_dict(
            {
                name.removeprefix("actor/"): torch.from_numpy(np.array(array))
                for name, array in weights.items()
                if name.startswith("actor/")
            }
        )
        if "normaliser/mean" in weights:
            mean, scale = (torch.from_numpy(np.array(weights[f"normaliser/{part}"])) for part in ("mean", "scale"))
            self._normaliser = mean, scale, float(weights["normaliser/clip"])

    def initial_carry(self, num_envs: int) -> Array:
        carry = np.zeros((num_envs, 1 + sum(shape.numel() for shape in self._shapes)), np.float32)
        carry[:, 0] = 1.0
        return carry

    @torch.no_grad()
    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        count, added = len(obs), max(0, self._least - len(obs))
        x, memory = (torch.from_numpy(np.pad(each, ((0, added), (0, 0)))) for each in (obs, carry))
        if self._normaliser is not None:
            mean, scale, clip = self._normaliser
            x = ((x - mean) * scale).clip(-clip, clip)
        parts = memory[:, 1:].split([shape.numel() for shape in self._shapes], 1)
        for name, part, shape in zip(self._carried, parts, self._shapes, strict=True):
            setattr(self._actor, name, part.reshape(len(part), *shape).clone())
        with seeded(0 if rng is None else int(rng.integers(2**62)), _CPU):
            action = explore(self._actor, x, memory[:, 0], rng is None, self._options)
        kept = [getattr(self._actor, name).reshape(len(x), -1)[:count].numpy() for name in self._carried]
        after = np.concatenate([np.zeros((count, 1), np.float32), *kept], 1)
        return action[:count].to(torch.float32).clip(-1.0, 1.0).numpy(), after, {}


@dataclass(frozen=True, eq=False)
class MakeActorPolicy:
    """The exploration of a run: `(policy, spec) -> Policy`, made in each process that acts."""

    actor: nn.Module
    options: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1

    def __call__(self, policy: Policy, spec: EnvSpec) -> Policy:
        return ActorPolicy(self.actor, self.options, self.num_envs)


class Deterministic(nn.Module):
    """An actor whose output are its deterministic actions, for `offbeat.load_policy`."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = copy.deepcopy(actor).to("cpu")

    def forward(self, obs: Tensor) -> Tensor:
        return explore(self.actor, obs, torch.zeros(len(obs)), True, {})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return self.actor.load_state_dict(state_dict, strict, assign)


@dataclass(frozen=True, eq=False)
class MakeDeterministic:
    """`(spec) -> nn.Module` of our settings."""

    actor: nn.Module

    def __call__(self, spec: EnvSpec) -> nn.Module:
        return Deterministic(self.actor)


def check_actions(actor: nn.Module, options: Mapping[str, Any], num_envs: int, obs_size: int, action_size: int) -> None:
    """Refuses an actor whose actions do not have the environment's shape. One row of zeros per environment is tried."""
    device = next((parameter.device for parameter in actor.parameters()), _CPU)
    rows = torch.zeros(num_envs, obs_size, device=device)
    training = actor.training
    with seeded(0, device), torch.no_grad():
        try:
            action: Any = explore(actor.eval(), rows, torch.zeros(num_envs, device=device), False, options)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"learner.actor raised {type(error).__name__} for observations ({num_envs}, {obs_size}) and "
                f"actor_kwargs={dict(options)!r}: {error}"
            ) from error
        finally:
            actor.train(training)
    if not isinstance(action, Tensor) or action.shape != (num_envs, action_size):
        gave = tuple(action.shape) if isinstance(action, Tensor) else f"a {type(action).__name__}"
        raise UsageError(
            f"learner.actor gave {gave} for observations ({num_envs}, {obs_size}), but its actions must be "
            f"({num_envs}, {action_size}): return them from explore(obs, dones=None, deterministic=False) or forward"
        )
