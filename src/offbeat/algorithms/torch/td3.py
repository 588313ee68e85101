"""TD3, and DDPG as its case of one critic without delay: a deterministic actor, E stacked critics, slow copies of both.

The critics are drawn to  r + discount * min_e Q'_e(s', a'),  where a' is the target actor's action with clipped noise;
after every `actor_every` updates the actor moves to where the first critic is large.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import TD3
from offbeat.algorithms.torch.actor_critic import build, check_spaces, refuse_sampler, towards, try_out, zeros
from offbeat.algorithms.torch.batch import Batch, blocks, total
from offbeat.algorithms.torch.differentiate import Network, Tape
from offbeat.algorithms.torch.networks import MLP
from offbeat.algorithms.torch.optimise import Adam, apply
from offbeat.references import name_of
from offbeat.types import EnvSpec

GROUPS = {"actor": "actor_", "critic": "critic_"}
"""Parameter groups, and the prefix of their learning rate and schedule in the config."""


@dataclass
class State:
    """All that learning changes. `updates` counts critic updates."""

    actor: Network
    target_actor: Network
    critic: Network
    target: Network
    actor_adam: Adam
    critic_adam: Adam
    updates: int = 0


def init(config: TD3, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> State:
    """First weights from `rng`."""
    check_spaces(type(config).__name__, spec, discrete=False)
    actor, critic = build(config, spec, rng, device, dtype, spec.action_size)
    refuse_sampler(type(config).__name__, actor, "actions")
    obs, state, action = zeros(spec, actor.flat)
    rule = f"return actions in [-1, 1], (batch, {spec.action_size})"
    try_out("actor", actor, (obs,), spec.action_size, rule)
    try_out("critic", critic, (obs, state, action), None, "")
    actor_adam, critic_adam = (Adam(each.flat, config.adam_epsilon) for each in (actor, critic))
    return State(actor, actor.copy(), critic, critic.copy(), actor_adam, critic_adam)


def noise_shape(config: TD3, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for the target's actions."""
    return (config.batch_size, spec.action_size)


def act(actor: Network, obs: Tensor) -> Tensor:
    """Actions (B, A) in [-1, 1]; a user's own module returns them, ours return what tanh makes them of."""
    out = actor(obs)
    return out.tanh() if isinstance(actor.module, MLP) else out


def act_to_learn(actor: Network, obs: Tensor) -> tuple[Tensor, Tape]:
    """As `act`, with the tape for `actor_gradient`."""
    out, tape = actor.forward(obs)
    return (out.tanh() if isinstance(actor.module, MLP) else out), tape


def actor_gradient(actor: Network, tape: Tape, action: Tensor, d_action: Tensor, add: bool) -> None:
    """Carries a gradient at the actions (B, A) back to the actor's parameters."""
    inside = isinstance(actor.module, MLP)
    actor.backward(tape, torch.addcmul(d_action, d_action, action.square(), value=-1.0) if inside else d_action, add)


def update_critic(state: State, config: TD3, batch: Batch, noise: Tensor, rate: float) -> dict[str, Tensor]:
    """One step on  sum_e mean (Q_e - target)^2,  whose gradient at Q_e is 2 (Q_e - target) / B."""
    errors, values, count = [], [], len(batch)
    disturbance = (noise * config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        next_action = (act(state.target_actor, block.next_obs) + disturbance[rows]).clamp_(-1.0, 1.0)
        next_q = state.target(block.next_obs, block.next_state, next_action).amin(0)
        target = torch.addcmul(block.reward, block.discount, next_q)
        q = state.critic.fit((block.obs, block.state, block.action), towards(target, 2.0 / count), add=index > 0)
        errors.append((q - target).square().sum())
        values.append(q.sum())
    apply(state.critic.flat, state.critic.gradient, state.critic_adam, rate, config.max_grad_norm)
    return {"critic_loss": total(errors) / count, "q": total(values) / (count * config.critics)}


def update_actor(state: State, config: TD3, batch: Batch, rate: float) -> dict[str, Tensor]:
    """One step on  -mean Q_0(s, actor(s))."""
    values, count, first = [], len(batch), state.critic.first_member
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        action, tape = act_to_learn(state.actor, block.obs)
        q, critic_tape = first.forward(block.obs, block.state, action)
        d_action = first.backward_to(2, critic_tape, torch.full_like(q, -1.0 / count))
        actor_gradient(state.actor, tape, action, d_action, add=index > 0)
        values.append(q.sum())
    apply(state.actor.flat, state.actor.gradient, state.actor_adam, rate, config.max_grad_norm)
    return {"actor_loss": -total(values) / count}


def update(
    state: State, config: TD3, spec: EnvSpec, batch: Batch, noise: Tensor, rates: dict[str, float]
) -> dict[str, Tensor]:
    """One update of everything that is due. noise (B, A): for the target's actions. Metrics stay tensors."""
    metrics = update_critic(state, config, batch, noise, rates["critic"])
    state.updates += 1
    if state.updates % config.actor_every == 0:
        metrics |= update_actor(state, config, batch, rates["actor"])
    if state.updates % config.target_every == 0:
        state.target.follow(state.critic, config.tau)
        state.target_actor.follow(state.actor, config.tau)
    return metrics


def policy_description(config: TD3, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    noise = config.exploration
    kind = None if noise is None else "gaussian" if type(noise).__name__ == "Gaussian" else "ornstein_uhlenbeck"
    description: dict[str, Any] = {
        "kind": "deterministic" if config.actor is None else "module",
        "head": "deterministic",
        "exploration": None if noise is None else {"kind": kind, **dataclasses.asdict(noise)},
    }
    if config.actor is None:
        return description | {"activation": config.activation}
    return description | {"actor": name_of(config.actor)}
