"""Deep Q-network: values of all discrete actions, drawn to  r + discount * Q'(s', a')  for the action that was taken.

a' is what the network likes best (double Q) or what its slow copy likes best. With dueling, the network gives a value
and advantages, and Q = V + A - mean A.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import DQN
from offbeat.algorithms.torch.actor_critic import check_spaces, network, try_out
from offbeat.algorithms.torch.batch import Batch, allowed, blocks, total
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.networks import MLP, OwnNetwork
from offbeat.algorithms.torch.optimise import Adam, apply
from offbeat.algorithms.torch.randomness import seeded
from offbeat.errors import UsageError
from offbeat.references import name_of, resolve
from offbeat.types import EnvSpec

GROUPS = {"critic": ""}
"""Parameter groups, and the prefix of their learning rate and schedule in the config."""


@dataclass
class State:
    """All that learning changes."""

    critic: Network
    target: Network
    adam: Adam
    updates: int = 0


def init(config: DQN, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> State:
    """First weights from `rng`; a user's own module draws its from torch, seeded by it."""
    check_spaces("DQN", spec, discrete=True)
    if spec.state_size:
        raise UsageError(
            "DQN acts with its critic, so nobody is left to show a privileged state to: leave state_key out, or use sac"
        )
    assert spec.choices is not None
    sizes = (spec.observation_size, *config.hidden, spec.choices + config.dueling)
    with seeded(int(rng.integers(2**62)), device):
        if config.critic is not None:
            module: torch.nn.Module = OwnNetwork(resolve(config.critic, "critic")(spec))
        else:
            module = MLP(sizes, activation=config.activation, layer_norm=config.layer_norm, rng=rng)
    critic = network(config, "critic", module, device, dtype)
    obs = critic.flat.new_zeros(2, spec.observation_size)
    try_out("critic", critic, (obs,), sizes[-1], f"return one value per action, (batch, {spec.choices})")
    return State(critic, critic.copy(), Adam(critic.flat, config.adam_epsilon))


def noise_shape(config: DQN, spec: EnvSpec) -> tuple[int, ...]:
    """An update draws nothing."""
    return (0,)


def values(config: DQN, out: Tensor) -> Tensor:
    """Q (B, choices) from the network's output."""
    if not config.dueling:
        return out
    advantage = out[:, 1:]
    return out[:, :1] + advantage - advantage.mean(1, keepdim=True)


def values_gradient(config: DQN, d_q: Tensor) -> Tensor:
    """The gradient at the network's output from that at Q (B, choices)."""
    if not config.dueling:
        return d_q
    return torch.cat((d_q.sum(1, keepdim=True), d_q - d_q.mean(1, keepdim=True)), 1)


def bootstrap(state: State, config: DQN, next_obs: Tensor, mask: Tensor) -> Tensor:
    """What the next observations are worth, (B,), with the actions that the mask allows there."""
    next_q = values(config, state.target(next_obs))
    if not config.double_q:
        return allowed(next_q, mask).amax(1)
    best = allowed(values(config, state.critic(next_obs)), mask).argmax(1, keepdim=True)
    return next_q.gather(1, best).squeeze(1)


def error_terms(config: DQN, error: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each error (B,) and its derivative."""
    if config.loss == "mse":
        return error.square(), 2.0 * error
    slope = error.clamp(-1.0, 1.0)
    return slope * (error - 0.5 * slope), slope


def update(
    state: State, config: DQN, spec: EnvSpec, batch: Batch, noise: Tensor, rates: dict[str, float]
) -> dict[str, Tensor]:
    """One step on the mean loss of  Q(s, a) - target;  the target network moves when due. Metrics stay tensors."""
    losses, sums, count = [], [], len(batch)
    for index, rows in enumerate(blocks(count, state.critic.explicit)):
        block = batch.rows(rows)
        following = bootstrap(state, config, block.next_obs, block.next_mask)
        following = following.masked_fill(block.discount == 0.0, 0.0)  # -inf where an ended game leaves no action
        goal = torch.addcmul(block.reward, block.discount, following)
        out, tape = state.critic.forward(block.obs)
        q, action = values(config, out), block.action.long()
        taken = q.gather(1, action).squeeze(1)
        loss, slope = error_terms(config, taken - goal)
        d_q = torch.zeros_like(q).scatter_(1, action, slope.unsqueeze(1) * (1.0 / count))
        state.critic.backward(tape, values_gradient(config, d_q), add=index > 0)
        losses.append(loss.sum())
        sums.append(taken.sum())
    apply(state.critic.flat, state.critic.gradient, state.adam, rates["critic"], config.max_grad_norm)
    state.updates += 1
    if state.updates % config.target_every == 0:
        state.target.follow(state.critic, config.tau)
    return {"loss": total(losses) / count, "q": total(sums) / count}


def policy_description(config: DQN, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    explored = None if config.exploration is None else dataclasses.asdict(config.exploration)
    description: dict[str, Any] = {
        "kind": "greedy" if config.critic is None else "module",
        "head": "greedy",
        "dueling": config.dueling,
        "exploration": None if explored is None else {"kind": "epsilon_greedy", **explored},
    }
    if config.critic is None:
        return description | {"activation": config.activation}
    return description | {"actor": name_of(config.critic)}
