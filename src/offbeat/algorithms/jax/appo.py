"""Asynchronous PPO, and PPO as its case without delay: an actor pi, a critic V of states, and rollouts.

A turn with a rollout computes advantages A and value targets by V-trace (`prepare`), which is GAE where the policy that
acted is the one that learns. Then each minibatch is one step of actor and critic on

    mean -min(w A, clip(w, 1 - clip, 1 + clip) A) - entropy_coefficient * mean entropy
    + value_coefficient * mean 1/2 (V(s) - value target)^2

where w is the ratio of pi to a reference: the policy as the turn began, or a target network that follows it. The whole
turn is one program. The losses are in `losses` and `distributions`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offbeat.algorithms.configs import APPO, PPO, AdaptiveRate
from offbeat.algorithms.descriptions import describe_policy_of_rollouts, refuse_box_settings, refuse_images
from offbeat.algorithms.jax.batch import Metrics, every, mask_forbidden
from offbeat.algorithms.jax.distributions import GaussianHead, Head, MultiCategorical
from offbeat.algorithms.jax.division import divided, divisible
from offbeat.algorithms.jax.losses import divergence, mean, policy_loss, standardise, value_loss
from offbeat.algorithms.jax.networks import MLP, Definition, Network, Values, WithLogStd, differentiate, make_network
from offbeat.algorithms.jax.optimise import Optimiser, apply_jointly, make_optimiser
from offbeat.algorithms.jax.own_networks import check_output_shape, own_actor, own_values, refuse_sampler, zero_inputs
from offbeat.algorithms.jax.returns import vtrace
from offbeat.algorithms.jax.rollout import Minibatch, RolloutArrays, RolloutRows
from offbeat.errors import UsageError
from offbeat.types import EnvSpec

END_ROWS = 128
"""Rows at ends of episodes whose next values are computed at a time."""
OF_ACTOR = ("policy_loss", "entropy", "clip_fraction", "approx_kl")
"""Metrics of each minibatch, also of one that stops the turn."""
OF_CRITIC = ("value_loss", "value")
"""Metrics of each update."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class APPOState:
    """All that learning changes. target: the reference's network, or None."""

    actor: Network
    critic: Network
    target: Network | None
    actor_optimiser: Optimiser
    critic_optimiser: Optimiser


def init(config: PPO, spec: EnvSpec, rng: np.random.Generator, device: Any, dtype: Any) -> APPOState:
    """First weights from `rng`: orthogonal, the actor's last layer so small that all states begin with one policy."""
    refuse_images("PPO and APPO", spec)
    if config.recurrence.recurrent:
        network = config.recurrence.network
        raise UsageError(f"network={network!r} of PPO and APPO needs backend=torch; with JAX they have network=mlp")
    _refuse_idle(config, spec)
    seed = int(rng.integers(2**62))  # of a user's own networks
    actor = make_network(_actor(config, spec, seed, dtype), rng, dtype)
    critic = make_network(_critic(config, spec, seed, dtype), rng, dtype)
    _check_own_networks(config, spec, actor, critic)
    target = actor if isinstance(config, APPO) and config.target.target_every is not None else None
    of_actor, of_critic = (make_optimiser(config.optimisation, each.flat) for each in (actor, critic))
    return APPOState(actor, critic, target, of_actor, of_critic)


def _outputs(config: PPO, spec: EnvSpec) -> int:
    """Numbers that describe the policy in one state."""
    return sum(spec.counts) or spec.action_size * (2 if config.policy.state_dependent_std else 1)


def _refuse_idle(config: PPO, spec: EnvSpec) -> None:
    """Refuses settings of Box actions that would have no effect here."""
    if spec.counts:
        refuse_box_settings(config.policy, spec)
    own_std = config.policy.state_dependent_std and config.own_networks.actor is not None
    if own_std and config.policy.initial_log_std != 0.0:
        raise UsageError("with state_dependent_std your own actor sets the initial log_std; leave initial_log_std out")


def _check_own_networks(config: PPO, spec: EnvSpec, actor: Network, critic: Network) -> None:
    refuse_sampler("PPO and APPO", actor, "the policy's parameters")
    (obs, state, _), outputs = zero_inputs(spec, actor.flat.dtype), _outputs(config, spec)
    if config.own_networks.actor is not None:
        check_output_shape("actor", actor, (obs,), outputs, f"return {outputs} numbers per row")
    if config.own_networks.critic is not None:
        check_output_shape("critic", critic, (obs, state), 1, "return one value per row")


def _actor(config: PPO, spec: EnvSpec, seed: int, dtype: Any) -> Definition:
    dependent, initial = config.policy.state_dependent_std, (config.policy.initial_log_std,) * spec.action_size
    own = config.own_networks.actor
    if own is not None:
        made = own_actor(own, spec, seed, dtype, samplers=False)
        if "log_std" in made.initial and not dependent:
            raise UsageError(
                "your actor has a log_std of its own, beside the one that ppo and appo learn: rename it, or return it "
                "after the means and set state_dependent_std"
            )
        return made if spec.counts or dependent else WithLogStd(made, initial)
    actor = MLP(
        (spec.observation_size, *config.networks.hidden, _outputs(config, spec)),
        activation=config.networks.activation,
        layer_norm=config.networks.layer_norm,
        orthogonal=0.01,
        last_bias=initial if dependent else (),
    )
    return actor if spec.counts or dependent else WithLogStd(actor, initial)


def _critic(config: PPO, spec: EnvSpec, seed: int, dtype: Any) -> Definition:
    if config.own_networks.critic is not None:
        return own_values(config.own_networks.critic, spec, seed, dtype)
    own, networks = config.critic_networks.critic_hidden, config.networks
    hidden = networks.hidden if own is None else own
    return Values.of(spec, hidden, activation=networks.activation, layer_norm=networks.layer_norm, orthogonal=1.0)


def head(config: PPO, spec: EnvSpec) -> Head:
    """What the actor's output means."""
    return MultiCategorical(spec.counts) if spec.counts else GaussianHead(config.policy.squash)


def log_std(actor: Network) -> Array | None:
    """The log standard deviation (A,) that is a parameter beside the actor's output, or None."""
    return actor.weights.get("log_std") if isinstance(actor.definition, WithLogStd) else None


def prepare(state: APPOState, config: PPO, spec: EnvSpec, steps: RolloutArrays) -> RolloutRows:
    """The rows of a turn: values by the critic as it is, log-probabilities by the reference, targets and advantages."""
    count, shape = steps.reward.size, steps.reward.shape
    obs, privileged, action, mask = (
        divided(each.reshape(count, -1)) for each in (steps.obs, steps.state, steps.action, steps.mask)
    )
    value = state.critic(obs, privileged).reshape(shape)
    reference, bounds, distributions = steps.log_prob, {}, obs[:, :0]
    if isinstance(config, APPO) or _exact_divergence(config):
        network, policy = state.actor if state.target is None else state.target, head(config, spec)
        out = mask_forbidden(network(obs), mask)
        if _exact_divergence(config):
            distributions = policy.parameters(out, log_std(network))
    if isinstance(config, APPO):
        limits = config.correction
        bounds = {"rho_bar": limits.rho_bar, "c_bar": limits.c_bar, "pg_rho_bar": limits.advantage_rho_bar}
        reference = policy(out, log_std(network), action)[0].reshape(shape)
    target, advantage = vtrace(
        behaviour_log_prob=steps.log_prob,
        target_log_prob=reference,
        reward=steps.reward,
        value=value,
        next_value=_next_values(state.critic, steps, value),
        terminated=steps.terminated,
        truncated=steps.truncated,
        gamma=config.returns.gamma,
        lambda_=config.returns.gae_lambda,
        **bounds,
    )
    return RolloutRows.of(steps, distributions, steps.log_prob, reference, advantage, target, value)


def _exact_divergence(config: PPO) -> bool:
    return isinstance(config.rate_control, AdaptiveRate) and config.rate_control.divergence == "exact"


def _next_values(critic: Network, steps: RolloutArrays, value: Array) -> Array:
    """V(s') (T, N): the value of the next row, but that of `next_obs` where an episode ends and in the last row.

    The latter are few: they are computed a number at a time, as often as it takes, so that no shape depends on them.
    """
    count = value.size
    size = min(END_ROWS, count)
    obs, privileged = (each.reshape(count, -1) for each in (steps.next_obs, steps.next_state))

    def some(index: Array, found: Array) -> Array:
        # Clamped at the end of `ends`: the last numbers of rows may overlap the ones before.
        which = jax.lax.dynamic_slice_in_dim(steps.ends, index * size, size)
        return found.at[which].set(critic(obs[which], privileged[which])[:, 0])

    following = jnp.roll(value, -1, 0).reshape(count)
    return jax.lax.fori_loop(0, -(-steps.end_count // size), some, following).reshape(value.shape)


def learn_rollout(
    state: APPOState,
    config: PPO,
    spec: EnvSpec,
    rollout: RolloutArrays,
    orders: Array,
    rate: Array,
    count: Array,
    updates: Array,
) -> tuple[APPOState, Array, Array, Metrics]:
    """Up to `count` updates with one rollout: all minibatches of all epochs.

    orders (epochs, T * N): the flat indices of the valid rows, in the order of each epoch, and any of them where the
    epoch has ended. updates: made before. Returns the state after them, how many updates were made, the learning rate
    after them, which is another where it adapts, and the values of each metric.
    """
    rows = prepare(state, config, spec, rollout)
    if config.returns.normalise_advantages and config.returns.normalise_over == "rollout":
        rows = rows.normalise_advantages()
    epochs, total = orders.shape
    most = divisible(-(-total // config.rollouts.minibatches))  # rows of the largest minibatch
    parts = jnp.minimum(config.rollouts.minibatches, rows.rows)
    more = jnp.full(most, orders[0, 0])  # so that the last minibatch can be read whole
    order = jnp.concatenate((orders.reshape(-1), more))
    limit = jnp.minimum(count, epochs * parts)

    def going(carry: Any) -> Array:
        _, _, made, stopped, _ = carry
        return (made < limit) & ~stopped

    def one(carry: Any) -> Any:
        state, rate, made, _, values = carry
        epoch, part = made // parts, made % parts
        size, larger = rows.rows // parts, rows.rows % parts
        first = epoch * total + part * size + jnp.minimum(part, larger)
        batch = rows.minibatch(order, first, size + (part < larger), most)
        key = jax.random.fold_in(rollout.key, made)
        # In the first update of a turn without a target network, the policy still is its reference.
        moved = (made > 0) | (state.target is not None)
        state, found, rate, stopped = learn_minibatch(state, config, spec, batch, rate, updates + made, moved, key)
        return state, rate, made + ~stopped, stopped, values.at[made].set(found)

    values = jnp.zeros((epochs * config.rollouts.minibatches, len(OF_ACTOR + OF_CRITIC)), rollout.reward.dtype)
    start = state, rate, jnp.zeros_like(limit), jnp.zeros((), bool), values
    state, rate, made, stopped, values = jax.lax.while_loop(going, one, start)
    return state, made, rate, _metrics(config, rows, values, made, stopped)


def _metrics(config: PPO, rows: RolloutRows, values: Array, made: Array, stopped: Array) -> Metrics:
    """Values of each update, with whether there is one, and those of the turn."""
    index = jnp.arange(len(values))
    metrics: Metrics = {}
    for column, name in enumerate(OF_ACTOR + OF_CRITIC):
        metrics[name] = values[:, column], index < (made + stopped if name in OF_ACTOR else made)
    metrics["explained_variance"] = rows.explained_variance()[None]
    if config.objective.target_kl is not None:
        metrics["kl_stops"] = stopped.astype(jnp.float32)[None]
    return metrics


def learn_minibatch(
    state: APPOState,
    config: PPO,
    spec: EnvSpec,
    batch: Minibatch,
    rate: Array,
    updates: Array,
    moved: Array,
    key: Array,
) -> tuple[APPOState, Array, Array, Array]:
    """One step on  policy loss + value_coefficient * value loss - entropy_coefficient * mean entropy.

    updates: made before this one. moved: whether the policy may differ from its reference, so that their divergence
    can adapt the rate or stop the turn. Returns the state, values of `OF_ACTOR` and `OF_CRITIC`, the rate of the next
    step, and whether `target_kl` stops the turn, in which case no step is made. A target network then moves at once:
    it moves by the number of updates otherwise, so every later turn would end before its first update.
    """
    gradient, of_actor = actor_gradient(state, config, spec, batch, jax.random.fold_in(key, 0))
    kl, no = of_actor[-1], jnp.zeros((), bool)

    def step(state: APPOState) -> tuple[APPOState, Array, Array, Array]:
        of_critic_gradient, of_critic = critic_gradient(state, config, batch, jax.random.fold_in(key, 1))
        new_rate = jnp.where(moved, adapted_rate(config, rate, kl), rate)
        parts = [
            (state.actor.flat, gradient, state.actor_optimiser),
            (state.critic.flat, of_critic_gradient, state.critic_optimiser),
        ]
        actor, critic = apply_jointly(parts, new_rate, config.optimisation.max_grad_norm)
        after = APPOState(
            state.actor.replace(actor[0]), state.critic.replace(critic[0]), state.target, actor[1], critic[1]
        )
        return _move_target(after, config, updates + 1), jnp.stack(of_actor + of_critic), new_rate, no

    def stop(state: APPOState) -> tuple[APPOState, Array, Array, Array]:
        return _moved_target(state, config), jnp.stack(of_actor + [jnp.zeros_like(kl)] * len(OF_CRITIC)), rate, ~no

    if config.objective.target_kl is None:
        return step(state)
    return jax.lax.cond(moved & (kl > 1.5 * config.objective.target_kl), stop, step, state)


def actor_gradient(
    state: APPOState, config: PPO, spec: EnvSpec, batch: Minibatch, key: Array | None = None
) -> tuple[Array, list[Array]]:
    """The actor's gradient, and the values of `OF_ACTOR`, of which the last is the divergence from the reference.

    key: turns dropout on.
    """
    policy, advantage, returns = head(config, spec), batch.advantage, config.returns
    if returns.normalise_advantages and returns.normalise_over == "minibatch":
        bar = config.correction.advantage_rho_bar if isinstance(config, APPO) else 1.0
        weight = jnp.minimum(jnp.exp(batch.reference - batch.behaviour), bar)
        advantage = standardise(advantage, weight, batch.share, batch.size)
    cap = config.correction.ratio_cap if isinstance(config, APPO) else 1.0

    def loss(actor: Network) -> tuple[Array, list[Array]]:
        out = mask_forbidden(actor(batch.obs), batch.mask)
        log_prob, entropy = policy(out, log_std(actor), batch.action)
        value, ratio = policy_loss(
            log_prob, batch.behaviour, batch.reference, advantage, config.objective.clip, cap, batch.share
        )
        mean_entropy = mean(entropy, batch.share)
        clipped = mean((jnp.abs(ratio - 1.0) > config.objective.clip).astype(ratio.dtype), batch.share)
        if _exact_divergence(config):
            kl = mean(policy.divergence(batch.policy, policy.parameters(out, log_std(actor))), batch.share)
        else:
            kl = divergence(log_prob, batch.reference, batch.share)
        return value - config.objective.entropy_coefficient * mean_entropy, [value, mean_entropy, clipped, kl]

    _, found, gradient = differentiate(loss, state.actor, key)
    return gradient, found


def critic_gradient(
    state: APPOState, config: PPO, batch: Minibatch, key: Array | None = None
) -> tuple[Array, list[Array]]:
    """The critic's gradient, and the values of `OF_CRITIC`."""

    def loss(critic: Network) -> tuple[Array, list[Array]]:
        value = critic(batch.obs, batch.state)[:, 0]
        found = value_loss(value, batch.target, batch.value, config.objective.value_clip, batch.share)
        return config.objective.value_coefficient * found, [found, mean(value, batch.share)]

    _, found, gradient = differentiate(loss, state.critic, key)
    return gradient, found


def _move_target(state: APPOState, config: PPO, updates: Array) -> APPOState:
    """Moves the target network, where there is one and that is due after so many updates."""
    if state.target is None or not isinstance(config, APPO):
        return state
    return every(config.target.target_every or 1, updates, lambda each: (_moved_target(each, config), {}), state)[0]


def _moved_target(state: APPOState, config: PPO) -> APPOState:
    if state.target is None or not isinstance(config, APPO):
        return state
    return dataclasses.replace(state, target=state.target.follow(state.actor, config.target.tau))


def adapted_rate(config: PPO, rate: Array, kl: Array) -> Array:
    """The rate of the next step: smaller where the divergence is too large, larger where it is too small."""
    control = config.rate_control
    if not isinstance(control, AdaptiveRate):
        return rate
    small = (kl > 0.0) & (kl < control.desired_kl / control.kl_factor)
    factor = jnp.where(small, control.factor, 1.0)
    factor = jnp.where(kl > control.desired_kl * control.kl_factor, 1.0 / control.factor, factor)
    return jnp.clip(rate * factor, control.lowest, control.highest)


def policy_description(config: PPO, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy_of_rollouts(config, spec)
