"""Deep Q-network: values Q(s, .) of all Discrete actions, with a slow copy Q'.

An update is one step on  mean loss(Q(s, a) - y),  y = r + discount * Q'(s', a'),  where the loss is the square or
Huber's, and a' is the best action at s' by Q (double Q-learning) or by Q'. With dueling, the network gives a value V
and advantages A, and Q = V + A - mean A. The gradient of the loss stands in `losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import DQN
from offbeat.algorithms.descriptions import describe_policy, refuse_images, refuse_privileged_state
from offbeat.algorithms.torch.actor_critic import check_output_shape, make_mlp, make_network
from offbeat.algorithms.torch.batch import Batch, BlockSums, blocks, mask_forbidden
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.losses import error_loss, weighted
from offbeat.algorithms.torch.memory import observation_width
from offbeat.algorithms.torch.networks import UserNetwork, own_module
from offbeat.algorithms.torch.optimise import Optimiser, apply, make_optimiser
from offbeat.algorithms.torch.seeding import seeded
from offbeat.types import EnvSpec


@dataclass
class DQNState:
    """All that learning changes."""

    critic: Network
    target: Network
    optimiser: Optimiser


def init(config: DQN, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> DQNState:
    """First weights from `rng`; a user's own module draws them from torch, which is seeded from `rng`."""
    refuse_images("DQN", spec)
    refuse_privileged_state("DQN", spec)
    assert spec.choices is not None
    outputs = spec.choices + config.dueling
    with seeded(int(rng.integers(2**62)), device):
        if config.own_networks.critic is not None:
            module: torch.nn.Module = UserNetwork(own_module(config.own_networks.critic, "critic", spec))
        else:
            module = make_mlp(config, spec, rng, outputs)
    critic = make_network(config, "critic", module, device, dtype)
    obs = critic.flat.new_zeros(2, observation_width(module, spec))
    check_output_shape("critic", critic, (obs,), outputs, f"return one value per action, (batch, {spec.choices})")
    return DQNState(critic, critic.copy(), make_optimiser(config.optimisation, critic.flat))


def noise_shape(config: DQN, spec: EnvSpec) -> tuple[int, ...]:
    """An update draws nothing."""
    return (0,)


def q_values(config: DQN, out: Tensor) -> Tensor:
    """Q (B, choices) from the network's output."""
    if not config.dueling:
        return out
    advantage = out[:, 1:]
    return out[:, :1] + advantage - advantage.mean(1, keepdim=True)


def q_values_gradient(config: DQN, d_q: Tensor) -> Tensor:
    """The gradient at the network's output from that at Q (B, choices)."""
    if not config.dueling:
        return d_q
    return torch.cat((d_q.sum(1, keepdim=True), d_q - d_q.mean(1, keepdim=True)), 1)


def next_values(state: DQNState, config: DQN, next_obs: Tensor, mask: Tensor) -> Tensor:
    """Q'(s', a') (B,), with a' among the actions that the mask allows."""
    next_q = q_values(config, state.target(next_obs))
    if not config.double_q:
        return mask_forbidden(next_q, mask).amax(1)
    best = mask_forbidden(q_values(config, state.critic(next_obs)), mask).argmax(1, keepdim=True)
    return next_q.gather(1, best).squeeze(1)


def update(
    state: DQNState, config: DQN, spec: EnvSpec, batch: Batch, noise: Tensor, rates: Mapping[str, float], updates: int
) -> tuple[dict[str, Tensor], Tensor]:
    """One step on  mean loss(Q(s, a) - y);  the target network moves when due.

    updates: made before this one. Returns metrics, which stay tensors, and the TD errors Q(s, a) - y (B,).
    """
    sums, count = BlockSums(), len(batch)
    for index, rows in enumerate(blocks(count, state.critic.explicit)):
        block = batch.rows(rows)
        next_q = next_values(state, config, block.next_obs, block.next_mask)
        next_q = next_q.masked_fill(block.discount == 0.0, 0.0)  # -inf where an ended game leaves no action
        target = torch.addcmul(block.reward, block.discount, next_q)
        out, tape = state.critic.forward(block.obs)
        q, action = q_values(config, out), block.action.long()
        taken = q.gather(1, action).squeeze(1)
        error = taken - target
        loss, slope = error_loss(error, config.loss)
        d_q = torch.zeros_like(q).scatter_(1, action, weighted(slope, block.weight).unsqueeze(1) * (1.0 / count))
        state.critic.backward(tape, q_values_gradient(config, d_q), add=index > 0)
        sums.add(error, loss=weighted(loss, block.weight), q=taken)
    apply(state.critic.flat, state.critic.gradient, state.optimiser, rates["critic"], config.optimisation.max_grad_norm)
    if (updates + 1) % config.target.target_every == 0:
        state.target.follow(state.critic, config.target.tau)
    return {"loss": sums["loss"] / count, "q": sums["q"] / count}, sums.errors


def policy_description(config: DQN, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy(config, "greedy", config.own_networks.critic, dueling=config.dueling)
