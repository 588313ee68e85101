"""TD3, and DDPG as its case of one critic without delay: a deterministic actor mu, E critics Q_e, slow copies of both.

An update is one step on the critics' loss and, every `actor_every` updates, one on the actor's:

    critic  sum_e mean (Q_e(s, a) - y)^2,  y = r + discount * min_e Q'_e(s', mu'(s') + clipped noise)
    actor   -mean Q_0(s, mu(s))
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

from offbeat.algorithms.configs import TD3
from offbeat.algorithms.configs.groups import learned_rows
from offbeat.algorithms.descriptions import describe_policy, refuse_images
from offbeat.algorithms.jax.actor_critic import check_own_networks, make_actor_and_critics
from offbeat.algorithms.jax.batch import Batch, Metrics, every
from offbeat.algorithms.jax.losses import weighted
from offbeat.algorithms.jax.memory import above
from offbeat.algorithms.jax.networks import MLP, Network, differentiate
from offbeat.algorithms.jax.optimise import Optimiser, apply, make_optimiser
from offbeat.algorithms.jax.own_networks import refuse_sampler
from offbeat.types import EnvSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TD3State:
    """All that learning changes."""

    actor: Network
    target_actor: Network
    critic: Network
    target: Network
    actor_optimiser: Optimiser
    critic_optimiser: Optimiser


def init(config: TD3, spec: EnvSpec, rng: np.random.Generator, device: Any, dtype: Any) -> TD3State:
    """First weights from `rng`."""
    refuse_images("TD3 and DDPG", spec)
    actor, critic = make_actor_and_critics(config, spec, rng, dtype, spec.action_size, samplers=False)
    refuse_sampler("TD3 and DDPG", actor, "actions")
    rule = f"return actions in [-1, 1], (batch, {spec.action_size})"
    check_own_networks(spec, actor, critic, spec.action_size, rule)
    of_actor, of_critic = (make_optimiser(config.optimisation, each.flat) for each in (actor, critic))
    return TD3State(actor, actor, critic, critic, of_actor, of_critic)


def noise_shape(config: TD3, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for the target's actions."""
    return (learned_rows(config), spec.action_size)


def act(actor: Network, obs: Array) -> Array:
    """Actions (B, A) in [-1, 1]: the tanh of our MLP's output, or what a user's own network returns."""
    out = actor(obs)
    return jnp.tanh(out) if isinstance(above(actor.definition), MLP) else out


def update_critic(
    state: TD3State, config: TD3, batch: Batch, noise: Array, rate: Array
) -> tuple[TD3State, Metrics, Array]:
    """One step on  sum_e mean (Q_e(s, a) - y)^2.  Returns the TD errors Q_e - y (E, B) too."""
    disturbance = jnp.clip(noise * config.target_noise, -config.target_noise_clip, config.target_noise_clip)
    next_action = jnp.clip(act(state.target_actor, batch.next_obs) + disturbance, -1.0, 1.0)
    target_critic = state.target.with_key(jax.random.fold_in(batch.key, 0))
    next_q = target_critic(batch.next_obs, batch.next_state, next_action).min(0)
    target = batch.reward + batch.discount * next_q

    def loss(critic: Network) -> tuple[Array, tuple[Array, Array]]:
        q = critic(batch.obs, batch.state, batch.action)
        error = q - target
        return weighted(error * error, batch.weight).mean(1).sum(), (q, error)

    value, (q, error), gradient = differentiate(loss, state.critic, jax.random.fold_in(batch.key, 1))
    flat, optimiser = apply(
        state.critic.flat, gradient, state.critic_optimiser, rate, config.optimisation.max_grad_norm
    )
    state = dataclasses.replace(state, critic=state.critic.replace(flat), critic_optimiser=optimiser)
    return state, {"critic_loss": value, "q": q.mean()}, error


def update_actor(state: TD3State, config: TD3, batch: Batch, rate: Array) -> tuple[TD3State, Metrics]:
    """One step on  -mean Q_0(s, mu(s))."""
    critic = state.critic.with_key(jax.random.fold_in(batch.key, 2))

    def loss(actor: Network) -> tuple[Array, None]:
        return -critic.first_member(batch.obs, batch.state, act(actor, batch.obs)).mean(), None

    value, _, gradient = differentiate(loss, state.actor)
    flat, optimiser = apply(state.actor.flat, gradient, state.actor_optimiser, rate, config.optimisation.max_grad_norm)
    state = dataclasses.replace(state, actor=state.actor.replace(flat), actor_optimiser=optimiser)
    return state, {"actor_loss": value}


def move_targets(state: TD3State, config: TD3, updates: Array) -> TD3State:
    """Moves both target networks, where that is due after so many updates."""
    tau = config.target.tau

    def move(state: TD3State) -> tuple[TD3State, Metrics]:
        target, target_actor = state.target.follow(state.critic, tau), state.target_actor.follow(state.actor, tau)
        return dataclasses.replace(state, target=target, target_actor=target_actor), {}

    return every(config.target.target_every, updates, move, state)[0]


def update(
    state: TD3State, config: TD3, spec: EnvSpec, batch: Batch, noise: Array, rates: Mapping[str, Array], updates: Array
) -> tuple[TD3State, Metrics, Array]:
    """One update of everything that is due. noise (B, A): for the target's actions. updates: made before this one.

    Returns the state after it, metrics, and TD errors (E, B).
    """
    state, metrics, errors = update_critic(state, config, batch, noise, rates["critic"])

    def learn_actor(state: TD3State) -> tuple[TD3State, Metrics]:
        return update_actor(state, config, batch, rates["actor"])

    state, found = every(config.actor_every, updates + 1, learn_actor, state)
    return move_targets(state, config, updates + 1), metrics | found, errors


def policy_description(config: TD3, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy(config, "deterministic", config.own_networks.actor)
