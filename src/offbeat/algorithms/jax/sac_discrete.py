"""Soft actor-critic for Discrete actions: a categorical actor, critics of all actions, no sampling.

Where `sac` samples actions, this takes the sum over all of them:

    critic  1/2 sum_e mean (Q_e(s, a) - y)^2,  y = r + discount * sum_a' pi(a'|s') (min_e Q'_e(s', a') - temperature *
            log pi(a'|s'))
    actor   mean sum_a pi(a|s) f(s, a),  f = temperature * log pi - min_e Q_e

The temperature's loss is that of `sac`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs import SAC
from offbeat.algorithms.descriptions import describe_policy, refuse_box_settings, refuse_images
from offbeat.algorithms.jax.actor_critic import check_own_networks, make_actor_and_critics
from offbeat.algorithms.jax.batch import Batch, Metrics, every, mask_forbidden
from offbeat.algorithms.jax.losses import over_critics, values_of_taken, weighted
from offbeat.algorithms.jax.networks import Network, differentiate
from offbeat.algorithms.jax.optimise import apply
from offbeat.algorithms.jax.own_networks import refuse_sampler
from offbeat.algorithms.jax.sac import SACState, min_over_critics, move_target, new_state, update_temperature
from offbeat.types import EnvSpec

__all__ = ["SACState", "init", "noise_shape", "policy_description", "update"]

SHARE_OF_ENTROPY = 0.98
"""The target entropy as a share of the largest, where the settings name none (Christodoulou 2019)."""


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: Any, dtype: Any) -> SACState:
    """First weights from `rng`."""
    refuse_images("SAC and REDQ", spec)
    refuse_box_settings(config.policy, spec)
    assert spec.choices is not None
    actor, critic = make_actor_and_critics(config, spec, rng, dtype, spec.choices, samplers=False)
    refuse_sampler("SAC and REDQ with Discrete actions", actor, "logits")
    check_own_networks(spec, actor, critic, spec.choices, f"return one logit per action, (batch, {spec.choices})")
    return new_state(config, actor, critic)


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: to choose critics, where the target uses a subset."""
    return (0 if config.target_subset is None else config.critic_networks.critics,)


def probabilities(logits: Array) -> tuple[Array, Array]:
    """pi and log pi (B, choices). log pi is 0 where pi is, because 0 log 0 is 0 and 0 times -inf would be NaN.

    An action with a logit of -inf has gradients of 0: exp gives its log-probability 0 times a finite number.
    """
    log_prob = jax.nn.log_softmax(logits, 1)
    prob = jnp.exp(log_prob)
    return prob, jnp.where(prob > 0.0, log_prob, 0.0)


def largest_entropy(spec: EnvSpec, batch: Batch) -> float | Array:
    """The entropy of a policy that takes all allowed actions equally often, on average over the batch."""
    assert spec.choices is not None
    if not batch.mask.shape[1]:
        return math.log(spec.choices)
    return jnp.log(batch.mask.sum(1).astype(batch.reward.dtype)).mean()


def update_critic(
    state: SACState, config: SAC, batch: Batch, members: Array | None, temperature: Array, rate: Array
) -> tuple[SACState, Metrics, Array]:
    """One step on  1/2 sum_e mean (Q_e(s, a) - y)^2.  Returns the TD errors Q_e(s, a) - y (E, B) too."""
    prob, log_prob = probabilities(mask_forbidden(state.actor(batch.next_obs), batch.next_mask))
    target_critic = state.target.with_key(jax.random.fold_in(batch.key, 0))
    next_q = min_over_critics(target_critic(batch.next_obs, batch.next_state), members)
    next_value = (prob * (next_q - temperature * log_prob)).sum(1)
    next_value = jnp.where(batch.discount == 0.0, 0.0, next_value)  # NaN where an ended game leaves no action
    target = batch.reward + batch.discount * next_value

    def loss(critic: Network) -> tuple[Array, tuple[Array, Array]]:
        q = critic(batch.obs, batch.state)
        error = values_of_taken(q, batch.action) - target
        return 0.5 * weighted(error * error, batch.weight).mean(1).sum(), (q.mean(), error)

    value, (q, error), gradient = differentiate(loss, state.critic, jax.random.fold_in(batch.key, 1))
    flat, optimiser = apply(
        state.critic.flat, gradient, state.critic_optimiser, rate, config.optimisation.max_grad_norm
    )
    state = dataclasses.replace(state, critic=state.critic.replace(flat), critic_optimiser=optimiser)
    return state, {"critic_loss": value, "q": q}, error


def update_actor(
    state: SACState, config: SAC, batch: Batch, temperature: Array, rate: Array
) -> tuple[SACState, Metrics]:
    """One step on  mean sum_a pi_a f_a,  f = temperature * log pi - min_e Q_e  (or the mean over e)."""
    critic = state.critic.with_key(jax.random.fold_in(batch.key, 2))
    q = over_critics(critic(batch.obs, batch.state), config.actor_value)

    def loss(actor: Network) -> tuple[Array, Array]:
        prob, log_prob = probabilities(mask_forbidden(actor(batch.obs), batch.mask))
        return (prob * (temperature * log_prob - q)).sum(1).mean(), -(prob * log_prob).sum(1).mean()

    value, entropy, gradient = differentiate(loss, state.actor)
    flat, optimiser = apply(state.actor.flat, gradient, state.actor_optimiser, rate, config.optimisation.max_grad_norm)
    state = dataclasses.replace(state, actor=state.actor.replace(flat), actor_optimiser=optimiser)
    return state, {"actor_loss": value, "entropy": entropy}


def update(
    state: SACState, config: SAC, spec: EnvSpec, batch: Batch, noise: Array, rates: Mapping[str, Array], updates: Array
) -> tuple[SACState, Metrics, Array]:
    """One update of everything that is due. noise: as `noise_shape` says. updates: made before this one.

    Returns the state after it, metrics, and TD errors (E, B).
    """
    temperature = jnp.exp(state.log_temperature[0])
    members = None if config.target_subset is None else jnp.argsort(noise)[: config.target_subset]
    state, metrics, errors = update_critic(state, config, batch, members, temperature, rates["critic"])

    def learn_actor(state: SACState) -> tuple[SACState, Metrics]:
        state, found = update_actor(state, config, batch, temperature, rates["actor"])
        usual = SHARE_OF_ENTROPY * largest_entropy(spec, batch)
        state, more = update_temperature(state, config, usual, found["entropy"], rates["temperature"])
        return state, found | more

    state, found = every(config.actor_every, updates + 1, learn_actor, state)
    return move_target(state, config, updates + 1), metrics | found, errors


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy(config, "categorical", config.own_networks.actor)
