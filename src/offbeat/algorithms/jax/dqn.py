"""Deep Q-network: values Q(s, .) of all Discrete actions, with a slow copy Q'.

An update is one step on  mean loss(Q(s, a) - y),  y = r + discount * Q'(s', a'),  where the loss is the square or
Huber's, and a' is the best action at s' by Q (double Q-learning) or by Q'. With dueling, the network gives a value V
and advantages A, and Q = V + A - mean A.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs import DQN
from offbeat.algorithms.descriptions import describe_policy, refuse_images, refuse_privileged_state
from offbeat.algorithms.jax.actor_critic import make_mlp
from offbeat.algorithms.jax.batch import Batch, Metrics, every, mask_forbidden
from offbeat.algorithms.jax.losses import error_loss, values_of_taken, weighted
from offbeat.algorithms.jax.networks import Network, differentiate, make_network
from offbeat.algorithms.jax.optimise import Optimiser, apply, make_optimiser
from offbeat.algorithms.jax.own_networks import check_output_shape, own_q_network, zero_inputs
from offbeat.types import EnvSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DQNState:
    """All that learning changes."""

    critic: Network
    target: Network
    optimiser: Optimiser


def init(config: DQN, spec: EnvSpec, rng: np.random.Generator, device: Any, dtype: Any) -> DQNState:
    """First weights from `rng`."""
    refuse_images("DQN", spec)
    refuse_privileged_state("DQN", spec)
    assert spec.choices is not None
    seed, own = int(rng.integers(2**62)), config.own_networks.critic
    if own is not None:
        critic = make_network(own_q_network(own, spec, seed, dtype), rng, dtype)
        rule = f"return one value per action, (batch, {spec.choices})"
        check_output_shape("critic", critic, zero_inputs(spec, dtype)[:1], spec.choices, rule)
    else:
        critic = make_network(make_mlp(config, spec, seed, dtype, spec.choices + config.dueling), rng, dtype)
    return DQNState(critic, critic, make_optimiser(config.optimisation, critic.flat))


def noise_shape(config: DQN, spec: EnvSpec) -> tuple[int, ...]:
    """An update draws nothing."""
    return (0,)


def q_values(config: DQN, out: Array) -> Array:
    """Q (B, choices) from the network's output."""
    if not config.dueling:
        return out
    advantage = out[:, 1:]
    return out[:, :1] + advantage - advantage.mean(1, keepdims=True)


def next_values(state: DQNState, config: DQN, batch: Batch) -> Array:
    """Q'(s', a') (B,), with a' among the actions that the mask allows; 0 where the episode has ended."""
    next_q = q_values(config, state.target(batch.next_obs))
    if config.double_q:
        best = mask_forbidden(q_values(config, state.critic(batch.next_obs)), batch.next_mask).argmax(1)
        value = values_of_taken(next_q, best[:, None])
    else:
        value = mask_forbidden(next_q, batch.next_mask).max(1)
    return jnp.where(batch.discount == 0.0, 0.0, value)  # -inf where an ended game leaves no action


def update(
    state: DQNState, config: DQN, spec: EnvSpec, batch: Batch, noise: Array, rates: Mapping[str, Array], updates: Array
) -> tuple[DQNState, Metrics, Array]:
    """One step on  mean loss(Q(s, a) - y);  the target network moves when due.

    updates: made before this one. Returns the state after it, metrics, and the TD errors Q(s, a) - y (B,).
    """
    target = batch.reward + batch.discount * next_values(state, config, batch)

    def loss(critic: Network) -> tuple[Array, tuple[Array, Array]]:
        taken = values_of_taken(q_values(config, critic(batch.obs)), batch.action)
        error = taken - target
        return weighted(error_loss(error, config.loss), batch.weight).mean(), (taken.mean(), error)

    value, (q, error), gradient = differentiate(loss, state.critic)
    flat, optimiser = apply(
        state.critic.flat, gradient, state.optimiser, rates["critic"], config.optimisation.max_grad_norm
    )
    state = dataclasses.replace(state, critic=state.critic.replace(flat), optimiser=optimiser)
    return move_target(state, config, updates + 1), {"loss": value, "q": q}, error


def move_target(state: DQNState, config: DQN, updates: Array) -> DQNState:
    """Moves the target network, where that is due after so many updates."""
    tau = config.target.tau
    return every(
        config.target.target_every,
        updates,
        lambda state: (dataclasses.replace(state, target=state.target.follow(state.critic, tau)), {}),
        state,
    )[0]


def policy_description(config: DQN, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy(config, "greedy", config.own_networks.critic, dueling=config.dueling)
