"""Soft actor-critic: a squashed Gaussian actor, E stacked critics with a slow copy, a learned or fixed temperature.

Each update is two halves. The critics are drawn to  r + discount * (min_e Q'_e(s', a') - temperature * log pi(a'|s'));
the actor to actions where  min_e Q_e(s, a) - temperature * log pi(a|s)  is large, and the temperature to where the
policy's entropy is near its target. Both halves use the actor and the temperature that the update began with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.algorithms.configs import SAC, Learned
from offbeat.algorithms.torch.networks import MLP, Critics, OwnCritics, short_name
from offbeat.algorithms.torch.optimise import Adam, Network, apply, gradient_of
from offbeat.errors import SpaceError, UsageError
from offbeat.references import name_of, resolve
from offbeat.types import EnvSpec

GROUPS = ("actor", "critic", "temperature")
"""Parameter groups, each with `GROUP_learning_rate` and `GROUP_schedule` in the config."""


@dataclass
class State:
    """All that learning changes. `updates` counts critic updates."""

    actor: Network
    critic: Network
    target: Network
    log_temperature: Tensor  # (1,)
    actor_adam: Adam
    critic_adam: Adam
    temperature_adam: Adam
    updates: int = 0


@dataclass(frozen=True)
class Batch:
    """`Transitions` as tensors on the learner's device, normalised and scaled."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    state: Tensor
    next_state: Tensor


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> State:
    """First weights from `rng`; a user's own modules draw theirs from torch, seeded by it."""
    if spec.layout.images:
        image = spec.layout.images[0]
        raise SpaceError(
            f"{spec.name}: the observation {image.name!r} is an image {image.shape}, but SAC's networks take vectors "
            "(there is no pixel encoder yet): flatten it with gymnasium.wrappers.FlattenObservation, or leave it out"
        )
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**62)))
        actor_module, critic_module = _actor(config, spec, rng), _critics(config, spec, rng)
    actor = Network(actor_module.to(device, dtype), short_name if config.actor is None else str)
    critic = Network(critic_module.to(device, dtype), short_name if config.critic is None else str)
    _check_shapes(config, spec, actor, critic)
    target = critic.copy()
    target.module.requires_grad_(False)
    temperature = config.temperature.initial if isinstance(config.temperature, Learned) else config.temperature.value
    log_temperature = torch.tensor([temperature], device=device, dtype=dtype).log()
    adams = Adam(actor.flat), Adam(critic.flat), Adam(log_temperature)
    return State(actor, critic, target, log_temperature, *adams)


def _actor(config: SAC, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.actor is not None:
        module: nn.Module = resolve(config.actor, "actor")(spec)
        return module
    sizes = (spec.observation_size, *config.hidden, 2 * spec.action_size)
    return MLP(sizes, activation=config.activation, layer_norm=config.layer_norm, rng=rng)


def _critics(config: SAC, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.critic is not None:
        make = resolve(config.critic, "critic")
        return OwnCritics([make(spec) for _ in range(config.critics)])
    hidden = config.hidden if config.critic_hidden is None else config.critic_hidden
    return Critics(spec, config.critics, hidden, activation=config.activation, layer_norm=config.layer_norm, rng=rng)


@torch.no_grad()
def _check_shapes(config: SAC, spec: EnvSpec, actor: Network, critic: Network) -> None:
    """Two rows of zeros through both networks, so that a user's own modules fail here and in words."""
    obs, state, noise = (actor.flat.new_zeros(2, n) for n in (spec.observation_size, spec.state_size, spec.action_size))
    wanted = [noise.shape, noise.shape]
    module: Any = actor.module
    if hasattr(module, "sample"):
        given, wanted[1] = module.sample(obs, noise), noise.shape[:1]
    else:
        given = mean_and_log_std(module(obs))
    if [part.shape for part in given] != wanted:
        raise UsageError(
            f"your actor gave {' and '.join(str(tuple(part.shape)) for part in given)} for 2 rows, not "
            f"{' and '.join(str(tuple(shape)) for shape in wanted)}: return (mean, log_std), each (batch, action "
            "size), or have a method sample(obs, noise) that returns (action, log_prob)"
        )
    action, _ = sample(config, actor.module, obs, noise)
    critic(obs, state, action)


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for the policy at s and at s'."""
    return (2, config.batch_size, spec.action_size)


def sample(config: SAC, actor: Any, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, A) in [-1, 1] and their log-probability (B,), from standard normal noise (B, A).

    log(1 - tanh(u)^2) is written 2 (log 2 - u - softplus(-2u)), which is exact for large |u|.
    """
    if hasattr(actor, "sample"):
        action, log_prob = actor.sample(obs, noise)
        return action, log_prob
    mean, log_std = mean_and_log_std(actor(obs))
    log_std = log_std.clamp(config.log_std_min, config.log_std_max)
    u = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squashing = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
    return torch.tanh(u), (gaussian - squashing).sum(-1)


def mean_and_log_std(out: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """An actor's output, a pair or one tensor (B, 2A), as two tensors (B, A)."""
    mean, log_std = out if isinstance(out, tuple) else out.chunk(2, -1)
    return mean, log_std


def update_critic(
    state: State,
    config: SAC,
    batch: Batch,
    next_action: Tensor,
    next_log_prob: Tensor,
    temperature: Tensor,
    rate: float,
) -> dict[str, Tensor]:
    with torch.no_grad():
        next_q = state.target(batch.next_obs, batch.next_state, next_action).min(0).values
        target = batch.reward + batch.discount * (next_q - temperature * next_log_prob)
    q = state.critic(batch.obs, batch.state, batch.action)
    loss = 0.5 * (q - target).square().mean(1).sum()
    apply(state.critic.flat, gradient_of(loss, state.critic.parameters), state.critic_adam, rate, config.max_grad_norm)
    return {"critic_loss": loss.detach(), "q": q.detach().mean()}


def update_actor(
    state: State, config: SAC, batch: Batch, action: Tensor, log_prob: Tensor, temperature: Tensor, rate: float
) -> dict[str, Tensor]:
    q = state.critic(batch.obs, batch.state, action).min(0).values
    loss = (temperature * log_prob - q).mean()
    apply(state.actor.flat, gradient_of(loss, state.actor.parameters), state.actor_adam, rate, config.max_grad_norm)
    return {"actor_loss": loss.detach(), "entropy": -log_prob.detach().mean()}


def update_temperature(
    state: State, config: SAC, target_entropy: float, log_prob: Tensor, rate: float
) -> dict[str, Tensor]:
    """The loss is -log_temperature * (log_prob + target_entropy), so its gradient needs no graph."""
    gradient = -(log_prob.detach() + target_entropy).mean().view(1)
    apply(state.log_temperature, gradient, state.temperature_adam, rate)
    return {"temperature": state.log_temperature.exp().squeeze()}


def update(
    state: State, config: SAC, spec: EnvSpec, batch: Batch, noise: Tensor, rates: dict[str, float]
) -> dict[str, Tensor]:
    """One update of everything that is due. noise (2, B, A): for s and for s'. Metrics stay tensors."""
    temperature = state.log_temperature.exp()
    actor_due = state.updates % config.actor_every == 0
    if actor_due:
        # One pass over s and s': the actor does not change in between.
        actions, log_probs = sample(
            config, state.actor.module, torch.cat((batch.obs, batch.next_obs)), noise.flatten(0, 1)
        )
        (action, next_action), (log_prob, next_log_prob) = actions.chunk(2), log_probs.chunk(2)
    else:
        with torch.no_grad():
            next_action, next_log_prob = sample(config, state.actor.module, batch.next_obs, noise[1])
    metrics = update_critic(
        state, config, batch, next_action.detach(), next_log_prob.detach(), temperature, rates["critic"]
    )
    if actor_due:
        metrics |= update_actor(state, config, batch, action, log_prob, temperature, rates["actor"])
        if isinstance(config.temperature, Learned):
            entropy = config.temperature.target_entropy
            target_entropy = -float(spec.action_size) if entropy is None else entropy
            metrics |= update_temperature(state, config, target_entropy, log_prob, rates["temperature"])
    state.updates += 1
    if state.updates % config.target_every == 0:
        state.target.follow(state.critic, config.tau)
    return metrics


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    description: dict[str, Any] = {
        "kind": "squashed_gaussian" if config.actor is None else "module",
        "action_size": spec.action_size,
        "log_std_min": config.log_std_min,
        "log_std_max": config.log_std_max,
    }
    if config.actor is None:
        return description | {"activation": config.activation}
    return description | {"actor": name_of(config.actor)}
