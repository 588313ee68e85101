"""Soft actor-critic for Box actions: a squashed Gaussian actor, E critics with a slow copy Q', and a temperature.

An update is one step on each of these losses, with a ~ pi(.|s) and a' ~ pi(.|s') of the actor before the update:

    critic       1/2 sum_e mean (Q_e(s, a) - y)^2,  y = r + discount (min_e Q'_e(s', a') - temperature * log pi(a'|s'))
    actor        mean (temperature * log pi(a|s) - min_e Q_e(s, a))
    temperature  log temperature * (entropy - target entropy),  entropy = -mean log pi(a|s)

In the critic's loss a is the action that was taken.
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

from offbeat.algorithms.configs import SAC, Learned
from offbeat.algorithms.configs.groups import learned_rows
from offbeat.algorithms.descriptions import describe_policy, refuse_images
from offbeat.algorithms.jax.actor_critic import check_own_networks, make_actor_and_critics
from offbeat.algorithms.jax.batch import Batch, Metrics, every
from offbeat.algorithms.jax.distributions import squash
from offbeat.algorithms.jax.losses import over_critics, weighted
from offbeat.algorithms.jax.networks import Network, differentiate
from offbeat.algorithms.jax.optimise import Optimiser, apply, make_optimiser
from offbeat.types import EnvSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SACState:
    """All that learning changes."""

    actor: Network
    critic: Network
    target: Network
    log_temperature: Array  # (1,)
    actor_optimiser: Optimiser
    critic_optimiser: Optimiser
    temperature_optimiser: Optimiser


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: Any, dtype: Any) -> SACState:
    """First weights from `rng`."""
    refuse_images("SAC and REDQ", spec)
    size = spec.action_size
    actor, critic = make_actor_and_critics(config, spec, rng, dtype, 2 * size)
    rule = (
        f"return (mean, log_std), each (batch, {size}), or have a method sample(obs, noise) that returns an action "
        f"(batch, {size}) and its log_prob (batch,)"
    )
    check_own_networks(spec, actor, critic, 2 * size, rule)
    return new_state(config, actor, critic)


def new_state(config: SAC, actor: Network, critic: Network) -> SACState:
    """The state around new networks."""
    temperature = config.temperature.initial if isinstance(config.temperature, Learned) else config.temperature.value
    with np.errstate(divide="ignore"):  # a fixed temperature of 0 has the logarithm -inf
        log_temperature: Any = np.log(np.full(1, temperature, actor.flat.dtype))
    of_actor, of_critic = (make_optimiser(config.optimisation, each.flat) for each in (actor, critic))
    of_temperature = make_optimiser(config.optimisation, log_temperature, decay=False)
    return SACState(actor, critic, critic, log_temperature, of_actor, of_critic, of_temperature)


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for actions at s and at s', and to choose critics."""
    if config.target_subset is None:
        return (2, learned_rows(config), spec.action_size)
    return (2 * learned_rows(config) * spec.action_size + config.critic_networks.critics,)


def split_noise(config: SAC, noise: Array) -> tuple[Array, Array | None]:
    """The policy's noise (2, B, A), and which critics (M,) the target takes the minimum of; None is all."""
    if config.target_subset is None:
        return noise, None
    for_policy, for_critics = noise[: -config.critic_networks.critics], noise[-config.critic_networks.critics :]
    # Those with the smallest of independent draws: all subsets are equally likely.
    return for_policy.reshape(2, learned_rows(config), -1), jnp.argsort(for_critics)[: config.target_subset]


def min_over_critics(q: Array, members: Array | None) -> Array:
    """The minimum over critics (E, ...), all or the drawn ones."""
    return (q if members is None else q[members]).min(0)


def sample(config: SAC, actor: Network, obs: Array, noise: Array) -> tuple[Array, Array]:
    """The policy's actions (B, A) in [-1, 1] for observations and noise, and their log-probability (B,).

    A definition with `draw` draws its actions itself, in any units, with whatever it takes for noise.
    """
    if hasattr(actor.definition, "draw"):
        action, log_prob = actor.definition.draw(actor.weights, obs, noise)
        return action, log_prob
    return squash(actor(obs), noise, (config.policy.log_std_min, config.policy.log_std_max))


def update_critic(
    state: SACState, config: SAC, batch: Batch, noise: Array, members: Array | None, temperature: Array, rate: Array
) -> tuple[SACState, Metrics, Array]:
    """One step on  1/2 sum_e mean (Q_e(s, a) - y)^2.  Returns the TD errors Q_e - y (E, B) too."""
    next_action, next_log_prob = sample(config, state.actor, batch.next_obs, noise)
    target_critic = state.target.with_key(jax.random.fold_in(batch.key, 0))
    next_q = min_over_critics(target_critic(batch.next_obs, batch.next_state, next_action), members)
    target = batch.reward + batch.discount * (next_q - temperature * next_log_prob)

    def loss(critic: Network) -> tuple[Array, tuple[Array, Array]]:
        q = critic(batch.obs, batch.state, batch.action)
        error = q - target
        return 0.5 * weighted(error * error, batch.weight).mean(1).sum(), (q, error)

    value, (q, error), gradient = differentiate(loss, state.critic, jax.random.fold_in(batch.key, 1))
    flat, optimiser = apply(
        state.critic.flat, gradient, state.critic_optimiser, rate, config.optimisation.max_grad_norm
    )
    state = dataclasses.replace(state, critic=state.critic.replace(flat), critic_optimiser=optimiser)
    return state, {"critic_loss": value, "q": q.mean()}, error


def update_actor(
    state: SACState, config: SAC, batch: Batch, noise: Array, temperature: Array, rate: Array
) -> tuple[SACState, Metrics]:
    """One step on  mean (temperature * log pi(a|s) - min_e Q_e(s, a)),  or with the mean over e."""
    critic = state.critic.with_key(jax.random.fold_in(batch.key, 2))

    def loss(actor: Network) -> tuple[Array, Array]:
        action, log_prob = sample(config, actor, batch.obs, noise)
        value = over_critics(critic(batch.obs, batch.state, action), config.actor_value)
        return (temperature * log_prob - value).mean(), -log_prob.mean()

    value, entropy, gradient = differentiate(loss, state.actor)
    flat, optimiser = apply(state.actor.flat, gradient, state.actor_optimiser, rate, config.optimisation.max_grad_norm)
    state = dataclasses.replace(state, actor=state.actor.replace(flat), actor_optimiser=optimiser)
    return state, {"actor_loss": value, "entropy": entropy}


def update_temperature(
    state: SACState, config: SAC, usual_target: float | Array, entropy: Array, rate: Array
) -> tuple[SACState, Metrics]:
    """One step on  log temperature * (entropy - target entropy),  where the temperature is learned.

    usual_target: the target entropy where the settings name none.
    """
    if not isinstance(config.temperature, Learned):
        return state, {}
    target = config.temperature.target_entropy
    gradient = (entropy - (usual_target if target is None else target)).reshape(1)
    flat, optimiser = apply(state.log_temperature, gradient, state.temperature_optimiser, rate)
    state = dataclasses.replace(state, log_temperature=flat, temperature_optimiser=optimiser)
    return state, {"temperature": jnp.exp(flat[0])}


def move_target(state: SACState, config: SAC, updates: Array) -> SACState:
    """Moves the target critics, where that is due after so many updates."""
    tau = config.target.tau
    return every(
        config.target.target_every,
        updates,
        lambda state: (dataclasses.replace(state, target=state.target.follow(state.critic, tau)), {}),
        state,
    )[0]


def update(
    state: SACState, config: SAC, spec: EnvSpec, batch: Batch, noise: Array, rates: Mapping[str, Array], updates: Array
) -> tuple[SACState, Metrics, Array]:
    """One update of everything that is due. noise: as `noise_shape` says. updates: made before this one.

    Returns the state after it, metrics, and TD errors (E, B).
    """
    temperature = jnp.exp(state.log_temperature[0])
    noise, members = split_noise(config, noise)
    state, metrics, errors = update_critic(state, config, batch, noise[1], members, temperature, rates["critic"])

    def learn_actor(state: SACState) -> tuple[SACState, Metrics]:
        state, found = update_actor(state, config, batch, noise[0], temperature, rates["actor"])
        entropy, usual = found["entropy"], -float(spec.action_size)
        state, more = update_temperature(state, config, usual, entropy, rates["temperature"])
        return state, found | more

    state, found = every(config.actor_every, updates + 1, learn_actor, state)
    return move_target(state, config, updates + 1), metrics | found, errors


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    size, limits = spec.action_size, dataclasses.asdict(config.policy)
    return describe_policy(config, "squashed_gaussian", config.own_networks.actor, action_size=size, **limits)
