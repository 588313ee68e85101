"""Soft actor-critic for Discrete actions: a categorical actor, critics of all actions, no sampling.

Where `sac` samples actions, this takes the sum over all of them:

    critic  1/2 sum_e mean (Q_e(s, a) - y)^2,  y = r + discount * sum_a' pi(a'|s') (min_e Q'_e(s', a') - temperature *
            log pi(a'|s'))
    actor   mean sum_a pi(a|s) f(s, a),  f = temperature * log pi - min_e Q_e

The temperature's loss is that of `sac`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import SAC
from offbeat.algorithms.descriptions import describe_policy, refuse_box_settings, refuse_images
from offbeat.algorithms.torch.actor_critic import (
    check_output_shape,
    make_actor_and_critics,
    refuse_sampler,
    zero_inputs,
)
from offbeat.algorithms.torch.batch import Batch, BlockSums, blocks, mask_forbidden
from offbeat.algorithms.torch.losses import expected_loss_gradient, weighted
from offbeat.algorithms.torch.optimise import apply
from offbeat.algorithms.torch.sac import SACState, min_over_critics, move_target, new_state, update_temperature
from offbeat.types import EnvSpec

__all__ = ["SACState", "init", "noise_shape", "policy_description", "update"]

SHARE_OF_ENTROPY = 0.98
"""The target entropy as a share of the largest, where the settings name none (Christodoulou 2019)."""


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> SACState:
    """First weights from `rng`."""
    refuse_images("SAC and REDQ", spec)
    refuse_box_settings(config.policy, spec)
    assert spec.choices is not None
    actor, critic = make_actor_and_critics(config, spec, rng, device, dtype, spec.choices)
    refuse_sampler("SAC and REDQ with Discrete actions", actor, "logits")
    obs, state, _ = zero_inputs(spec, actor)
    check_output_shape("actor", actor, (obs,), spec.choices, f"return one logit per action, (batch, {spec.choices})")
    check_output_shape("critic", critic, (obs, state), None, "")
    return new_state(config, actor, critic)


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: to choose critics, where the target uses a subset."""
    return (0 if config.target_subset is None else config.critic_networks.critics,)


def probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    """pi and log pi (B, choices). log pi is 0 where pi is, because 0 log 0 is 0 and 0 times -inf would be NaN."""
    log_prob = logits.log_softmax(1)
    prob = log_prob.exp()
    return prob, torch.where(prob > 0.0, log_prob, 0.0)


def largest_entropy(spec: EnvSpec, batch: Batch) -> float | Tensor:
    """The entropy of a policy that takes all allowed actions equally often, on average over the batch."""
    assert spec.choices is not None
    if not batch.mask.shape[1]:
        return math.log(spec.choices)
    return batch.mask.sum(1).to(batch.reward.dtype).log().mean()


def update_critic(
    state: SACState, config: SAC, batch: Batch, members: Tensor | None, temperature: Tensor, rate: float
) -> tuple[dict[str, Tensor], Tensor]:
    """One step on  1/2 sum_e mean (Q_e(s, a) - y)^2.  Returns metrics and the TD errors Q_e(s, a) - y (E, B)."""
    sums, count = BlockSums(), len(batch)
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        prob, log_prob = probabilities(mask_forbidden(state.actor(block.next_obs), block.next_mask))
        next_q = min_over_critics(state.target(block.next_obs, block.next_state), members)
        next_value = (prob * (next_q - temperature * log_prob)).sum(1)
        next_value = next_value.masked_fill(block.discount == 0.0, 0.0)  # NaN where an ended game leaves no action
        q, tape = state.critic.forward(block.obs, block.state)
        taken = block.action.long().expand(len(q), -1, -1)
        error = q.gather(2, taken).squeeze(2) - torch.addcmul(block.reward, block.discount, next_value)
        # Only the action that was taken has a gradient.
        d_q = torch.zeros_like(q).scatter_(2, taken, weighted(error / count, block.weight).unsqueeze(2))
        state.critic.backward(tape, d_q, add=index > 0)
        sums.add(error, loss=weighted(error.square(), block.weight), q=q)
    apply(state.critic.flat, state.critic.gradient, state.critic_optimiser, rate, config.optimisation.max_grad_norm)
    q_mean = sums["q"] / (count * q.shape[0] * q.shape[2])
    return {"critic_loss": sums["loss"] * (0.5 / count), "q": q_mean}, sums.errors


def update_actor(state: SACState, config: SAC, batch: Batch, temperature: Tensor, rate: float) -> dict[str, Tensor]:
    """One step on  mean sum_a pi_a f_a,  f = temperature * log pi - min_e Q_e  (or the mean over e)."""
    sums, count = BlockSums(), len(batch)
    for index, rows in enumerate(blocks(count, state.actor.explicit and state.critic.explicit)):
        block = batch.rows(rows)
        logits, tape = state.actor.forward(block.obs)
        prob, log_prob = probabilities(mask_forbidden(logits, block.mask))
        q = state.critic(block.obs, block.state)
        f = temperature * log_prob - (q.mean(0) if config.actor_value == "mean" else q.amin(0))
        mean = (prob * f).sum(1, keepdim=True)
        state.actor.backward(tape, expected_loss_gradient(prob, f, mean) / count, add=index > 0)
        sums.add(loss=mean, negative_entropy=prob * log_prob)
    apply(state.actor.flat, state.actor.gradient, state.actor_optimiser, rate, config.optimisation.max_grad_norm)
    return {"actor_loss": sums["loss"] / count, "entropy": -sums["negative_entropy"] / count}


def update(
    state: SACState, config: SAC, spec: EnvSpec, batch: Batch, noise: Tensor, rates: Mapping[str, float], updates: int
) -> tuple[dict[str, Tensor], Tensor]:
    """One update of everything that is due. noise: as `noise_shape` says. updates: made before this one.

    Returns metrics, which stay tensors, and TD errors (E, B).
    """
    temperature = state.log_temperature.exp()
    members = None if config.target_subset is None else noise.argsort()[: config.target_subset]
    metrics, errors = update_critic(state, config, batch, members, temperature, rates["critic"])
    if (updates + 1) % config.actor_every == 0:
        metrics |= update_actor(state, config, batch, temperature, rates["actor"])
        metrics |= update_temperature(
            state, config, SHARE_OF_ENTROPY * largest_entropy(spec, batch), metrics["entropy"], rates["temperature"]
        )
    move_target(state, config, updates + 1)
    return metrics, errors


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy(config, "categorical", config.own_networks.actor)
