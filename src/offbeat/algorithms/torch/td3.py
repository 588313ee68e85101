"""TD3, and DDPG as its case of one critic without delay: a deterministic actor mu, E critics Q_e, slow copies of both.

An update is one step on the critics' loss and, every `actor_every` updates, one on the actor's:

    critic  sum_e mean (Q_e(s, a) - y)^2,  y = r + discount * min_e Q'_e(s', mu'(s') + clipped noise)
    actor   -mean Q_0(s, mu(s))

The gradients stand in `losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import TD3
from offbeat.algorithms.configs.groups import learned_rows
from offbeat.algorithms.descriptions import describe_policy, refuse_images
from offbeat.algorithms.torch.actor_critic import (
    check_output_shape,
    make_actor_and_critics,
    refuse_sampler,
    zero_inputs,
)
from offbeat.algorithms.torch.batch import Batch, BlockSums, blocks
from offbeat.algorithms.torch.differentiate import Network, Tape
from offbeat.algorithms.torch.losses import squared_error_gradient, values_of_actions, weighted
from offbeat.algorithms.torch.memory import above
from offbeat.algorithms.torch.networks import MLP
from offbeat.algorithms.torch.optimise import Optimiser, apply, make_optimiser
from offbeat.types import EnvSpec


@dataclass
class TD3State:
    """All that learning changes."""

    actor: Network
    target_actor: Network
    critic: Network
    target: Network
    actor_optimiser: Optimiser
    critic_optimiser: Optimiser


def init(config: TD3, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> TD3State:
    """First weights from `rng`."""
    refuse_images("TD3 and DDPG", spec)
    actor, critic = make_actor_and_critics(config, spec, rng, device, dtype, spec.action_size)
    refuse_sampler("TD3 and DDPG", actor, "actions")
    obs, state, action = zero_inputs(spec, actor)
    rule = f"return actions in [-1, 1], (batch, {spec.action_size})"
    check_output_shape("actor", actor, (obs,), spec.action_size, rule)
    check_output_shape("critic", critic, (obs, state, action), None, "")
    of_actor, of_critic = (make_optimiser(config.optimisation, each.flat) for each in (actor, critic))
    return TD3State(actor, actor.copy(), critic, critic.copy(), of_actor, of_critic)


def noise_shape(config: TD3, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for the target's actions."""
    return (learned_rows(config), spec.action_size)


def act(actor: Network, obs: Tensor) -> Tensor:
    """Actions (B, A) in [-1, 1]: the tanh of our MLP's output, or what a user's own module returns."""
    out = actor(obs)
    return out.tanh() if isinstance(above(actor.module), MLP) else out


def act_to_learn(actor: Network, obs: Tensor) -> tuple[Tensor, Tape]:
    """As `act`, with the tape for `action_gradient`."""
    out, tape = actor.forward(obs)
    return (out.tanh() if isinstance(above(actor.module), MLP) else out), tape


def action_gradient(actor: Network, tape: Tape, action: Tensor, d_action: Tensor, add: bool) -> None:
    """Carries a gradient at the actions (B, A) back to the actor's parameters."""
    inside = isinstance(above(actor.module), MLP)
    actor.backward(tape, torch.addcmul(d_action, d_action, action.square(), value=-1.0) if inside else d_action, add)


def update_critic(
    state: TD3State, config: TD3, batch: Batch, noise: Tensor, rate: float
) -> tuple[dict[str, Tensor], Tensor]:
    """One step on  sum_e mean (Q_e(s, a) - y)^2.  Returns metrics and the TD errors Q_e - y (E, B)."""
    sums, count = BlockSums(), len(batch)
    disturbance = (noise * config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        next_action = (act(state.target_actor, block.next_obs) + disturbance[rows]).clamp_(-1.0, 1.0)
        next_q = state.target(block.next_obs, block.next_state, next_action).amin(0)
        target = torch.addcmul(block.reward, block.discount, next_q)
        gradient = squared_error_gradient(target, 2.0 / count, block.weight)
        q = state.critic.forward_backward((block.obs, block.state, block.action), gradient, add=index > 0)
        error = q - target
        sums.add(error, loss=weighted(error.square(), block.weight), q=q)
    apply(state.critic.flat, state.critic.gradient, state.critic_optimiser, rate, config.optimisation.max_grad_norm)
    return {"critic_loss": sums["loss"] / count, "q": sums["q"] / (count * config.critic_networks.critics)}, sums.errors


def update_actor(state: TD3State, config: TD3, batch: Batch, rate: float) -> dict[str, Tensor]:
    """One step on  -mean Q_0(s, mu(s))."""
    sums, count = BlockSums(), len(batch)
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        action, tape = act_to_learn(state.actor, block.obs)
        value, d_action = values_of_actions(state.critic, block, action, "first", -1.0 / count)
        action_gradient(state.actor, tape, action, d_action, add=index > 0)
        sums.add(value=value)
    apply(state.actor.flat, state.actor.gradient, state.actor_optimiser, rate, config.optimisation.max_grad_norm)
    return {"actor_loss": -sums["value"] / count}


def move_targets(state: TD3State, config: TD3, updates: int) -> None:
    """Moves both target networks, where that is due after so many updates."""
    if updates % config.target.target_every == 0:
        state.target.follow(state.critic, config.target.tau)
        state.target_actor.follow(state.actor, config.target.tau)


def update(
    state: TD3State, config: TD3, spec: EnvSpec, batch: Batch, noise: Tensor, rates: Mapping[str, float], updates: int
) -> tuple[dict[str, Tensor], Tensor]:
    """One update of everything that is due. noise (B, A): for the target's actions. updates: made before this one.

    Returns metrics, which stay tensors, and TD errors (E, B).
    """
    metrics, errors = update_critic(state, config, batch, noise, rates["critic"])
    if (updates + 1) % config.actor_every == 0:
        metrics |= update_actor(state, config, batch, rates["actor"])
    move_targets(state, config, updates + 1)
    return metrics, errors


def policy_description(config: TD3, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy(config, "deterministic", config.own_networks.actor)
