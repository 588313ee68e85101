"""Soft actor-critic for Discrete actions: a categorical actor, critics that value all actions, no sampling.

Where SAC samples, this sums over actions: the critics are drawn to  r + discount * sum_a pi(a|s') (min_e Q'_e(s', a) -
temperature * log pi(a|s')),  the actor to where  sum_a pi(a|s) (min_e Q_e(s, a) - temperature * log pi(a|s))  is large.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import SAC
from offbeat.algorithms.torch.actor_critic import build, check_spaces, refuse_sampler, try_out, zeros
from offbeat.algorithms.torch.batch import Batch, allowed, blocks, total
from offbeat.algorithms.torch.optimise import apply
from offbeat.algorithms.torch.sac import GROUPS, State, finish, least, new_state, update_temperature
from offbeat.errors import UsageError
from offbeat.references import name_of
from offbeat.types import EnvSpec

__all__ = ["GROUPS", "State", "init", "noise_shape", "policy_description", "update"]

SHARE_OF_ENTROPY = 0.98
"""The target entropy as a share of the largest, where the settings name none (Christodoulou 2019)."""


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> State:
    """First weights from `rng`."""
    check_spaces(type(config).__name__, spec, discrete=True)
    for name in ("log_std_min", "log_std_max"):
        if getattr(config, name) != getattr(type(config), name):
            raise UsageError(
                f"{name}={getattr(config, name):g} clamps the deviation of Gaussian actions, and {spec.name} has "
                f"Discrete ones: leave {name} out"
            )
    assert spec.choices is not None
    actor, critic = build(config, spec, rng, device, dtype, spec.choices)
    refuse_sampler("SAC with Discrete actions", actor, "logits")
    obs, state, _ = zeros(spec, actor.flat)
    try_out("actor", actor, (obs,), spec.choices, f"return one logit per action, (batch, {spec.choices})")
    try_out("critic", critic, (obs, state), None, "")
    return new_state(config, actor, critic)


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: to draw critics by, where the target takes some."""
    return (0 if config.target_subset is None else config.critics,)


def probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """pi and log pi (B, choices). log pi is 0 where pi is, because 0 log 0 is 0 and 0 times -inf would be NaN."""
    log_prob = logits.log_softmax(1)
    prob = log_prob.exp()
    return prob, torch.where(prob > 0.0, log_prob, 0.0)


def largest_entropy(spec: EnvSpec, batch: Batch) -> float | Tensor:
    """Of a policy that takes every allowed action equally often, on average over the batch."""
    assert spec.choices is not None
    return batch.mask.sum(1).log().mean() if batch.mask.shape[1] else math.log(spec.choices)


def update_critic(
    state: State, config: SAC, batch: Batch, members: Tensor | None, temperature: Tensor, rate: float
) -> dict[str, Tensor]:
    """One step on  1/2 sum_e mean (Q_e(s, a) - target)^2;  only the action that was taken has a gradient."""
    errors, values, count = [], [], len(batch)
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        prob, log_prob = probabilities(allowed(state.actor(block.next_obs), block.next_mask))
        next_q = least(state.target(block.next_obs, block.next_state), members)
        next_value = (prob * (next_q - temperature * log_prob)).sum(1)
        next_value = next_value.masked_fill(block.discount == 0.0, 0.0)  # NaN where an ended game leaves no action
        q, tape = state.critic.forward(block.obs, block.state)
        taken = block.action.long().expand(len(q), -1, -1)
        error = q.gather(2, taken).squeeze(2) - torch.addcmul(block.reward, block.discount, next_value)
        d_q = torch.zeros_like(q).scatter_(2, taken, (error / count).unsqueeze(2))
        state.critic.backward(tape, d_q, add=index > 0)
        errors.append(error.square().sum())
        values.append(q.sum())
    apply(state.critic.flat, state.critic.gradient, state.critic_adam, rate, config.max_grad_norm)
    return {"critic_loss": total(errors) * (0.5 / count), "q": total(values) / (count * q.shape[0] * q.shape[2])}


def update_actor(state: State, config: SAC, batch: Batch, temperature: Tensor, rate: float) -> dict[str, Tensor]:
    """One step on  mean sum_a pi_a f_a  with  f = temperature * log pi - Q.

    Its gradient at the logits is  pi_a (f_a - sum_b pi_b f_b) / B:  what log pi in f carries sums to 0.
    """
    losses, entropies, count = [], [], len(batch)
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        logits, tape = state.actor.forward(block.obs)
        prob, log_prob = probabilities(allowed(logits, block.mask))
        q = state.critic(block.obs, block.state)
        f = temperature * log_prob - (q.mean(0) if config.actor_value == "mean" else q.amin(0))
        mean = (prob * f).sum(1, keepdim=True)
        state.actor.backward(tape, prob * (f - mean) / count, add=index > 0)
        losses.append(mean.sum())
        entropies.append(-(prob * log_prob).sum())
    apply(state.actor.flat, state.actor.gradient, state.actor_adam, rate, config.max_grad_norm)
    return {"actor_loss": total(losses) / count, "entropy": total(entropies) / count}


def update(
    state: State, config: SAC, spec: EnvSpec, batch: Batch, noise: Tensor, rates: dict[str, float]
) -> dict[str, Tensor]:
    """One update of everything that is due. noise: as `noise_shape` says. Metrics stay tensors."""
    temperature = state.log_temperature.exp()
    members = None if config.target_subset is None else noise.argsort()[: config.target_subset]
    metrics = update_critic(state, config, batch, members, temperature, rates["critic"])
    if (state.updates + 1) % config.actor_every == 0:
        metrics |= update_actor(state, config, batch, temperature, rates["actor"])
        metrics |= update_temperature(
            state, config, SHARE_OF_ENTROPY * largest_entropy(spec, batch), metrics["entropy"], rates["temperature"]
        )
    finish(state, config)
    return metrics


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    description: dict[str, Any] = {"kind": "categorical" if config.actor is None else "module", "head": "categorical"}
    if config.actor is None:
        return description | {"activation": config.activation}
    return description | {"actor": name_of(config.actor)}
