"""Asynchronous PPO, and PPO as its case without delay: an actor pi, a critic V of states, and rollouts.

A turn with a rollout computes advantages A and value targets by V-trace (`prepare`), which is GAE where the policy that
acted is the one that learns. Then each minibatch is one step of actor and critic on

    mean -min(w A, clip(w, 1 - clip, 1 + clip) A) - entropy_coefficient * mean entropy
    + value_coefficient * mean 1/2 (V(s) - value target)^2

where w is the ratio of pi to a reference: the policy as the turn began, or a target network that follows it. The
gradients stand in `losses` and `distributions`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.configs import APPO, PPO, AdaptiveRate
from offbeat.algorithms.configs.groups import recurrence_of
from offbeat.algorithms.descriptions import describe_policy_of_rollouts, refuse_box_settings, refuse_images
from offbeat.algorithms.torch import across
from offbeat.algorithms.torch.actor_critic import (
    check_output_shape,
    make_mlp,
    make_network,
    refuse_sampler,
    zero_inputs,
)
from offbeat.algorithms.torch.batch import mask_forbidden
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.distributions import Categorical, GaussianHead, Head, MultiCategorical
from offbeat.algorithms.torch.losses import divergence, policy_loss, standardise, value_loss
from offbeat.algorithms.torch.memory import above, make_trunk, with_memory
from offbeat.algorithms.torch.networks import (
    MLP,
    Layer,
    UserNetwork,
    UserSampler,
    UserValues,
    Values,
    WithLogStd,
    check_no_shared_parameters,
    make_orthogonal,
    own_module,
)
from offbeat.algorithms.torch.optimise import Optimiser, apply_jointly, make_optimiser
from offbeat.algorithms.torch.returns import vtrace
from offbeat.algorithms.torch.rollout import Minibatch, RolloutRows, RolloutTensors
from offbeat.algorithms.torch.rollout_sequences import (
    CriticRun,
    RolloutSequences,
    begins_anew,
    packed,
    run_critic,
    values_after,
)
from offbeat.algorithms.torch.seeding import seeded
from offbeat.errors import UsageError
from offbeat.types import EnvSpec

Rows = RolloutRows | RolloutSequences


@dataclass
class APPOState:
    """All that learning changes. target: the reference's network, or None."""

    actor: Network
    critic: Network
    target: Network | None
    actor_optimiser: Optimiser
    critic_optimiser: Optimiser


def init(config: PPO, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> APPOState:
    """First weights from `rng`: orthogonal, the actor's last layer so small that all states begin with one policy."""
    refuse_images("PPO and APPO", spec)
    _refuse_idle(config, spec)
    with seeded(int(rng.integers(2**62)), device):
        own_actor, own_critic = _actor(config, spec, rng), _critic(config, spec, rng)
        check_no_shared_parameters(actor=own_actor, critic=own_critic)
        actor = make_network(config, "actor", own_actor, device, dtype)
        critic = make_network(config, "critic", own_critic, device, dtype)
    refuse_sampler("PPO and APPO", actor, "the policy's parameters")
    obs, state, _ = zero_inputs(spec, actor)
    check_output_shape(
        "actor", actor, (obs,), _outputs(config, spec), f"return {_outputs(config, spec)} numbers per row"
    )
    check_output_shape("critic", critic, (obs, state), 1, "return one value per row")
    target = actor.copy() if isinstance(config, APPO) and config.target.target_every is not None else None
    of_actor, of_critic = (make_optimiser(config.optimisation, each.flat) for each in (actor, critic))
    return APPOState(actor, critic, target, of_actor, of_critic)


def _refuse_idle(config: PPO, spec: EnvSpec) -> None:
    """Refuses settings of Box actions that would have no effect here."""
    if spec.counts:
        refuse_box_settings(config.policy, spec)
    own_std = config.policy.state_dependent_std and config.own_networks.actor is not None
    if own_std and config.policy.initial_log_std != 0.0:
        raise UsageError("with state_dependent_std your own actor sets the initial log_std; leave initial_log_std out")


def _outputs(config: PPO, spec: EnvSpec) -> int:
    """Numbers that describe the policy in one state."""
    return sum(spec.counts) or spec.action_size * (2 if config.policy.state_dependent_std else 1)


def _actor(config: PPO, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.own_networks.actor is not None:
        own = own_module(config.own_networks.actor, "actor", spec)
        if hasattr(own, "log_std") and not config.policy.state_dependent_std:
            raise UsageError(
                "your actor has a log_std of its own, beside the one that ppo and appo learn: rename it, or return it "
                "after the means and set state_dependent_std"
            )
        module: nn.Module = UserSampler(own) if hasattr(own, "sample") else UserNetwork(own)
    else:
        module = make_mlp(config, spec, rng, _outputs(config, spec))
        mlp = above(module)
        assert isinstance(mlp, MLP)
        make_orthogonal(mlp, rng, last=0.01)
    if spec.counts:
        return module
    initial = torch.full((spec.action_size,), config.policy.initial_log_std, dtype=torch.float64)
    if not config.policy.state_dependent_std:
        return WithLogStd(module, initial)
    if isinstance(mlp := above(module), MLP):
        last = mlp.layers[-1]
        assert isinstance(last, Layer)
        last.bias.data[spec.action_size :] = initial
    return module


def _critic(config: PPO, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.own_networks.critic is not None:
        return UserValues(own_module(config.own_networks.critic, "critic", spec))
    own = config.critic_networks.critic_hidden
    hidden = config.networks.hidden if own is None else own
    trunk = make_trunk(config, spec, rng)
    settings = {"activation": config.networks.activation, "layer_norm": config.networks.layer_norm, "rng": rng}
    critic = Values(spec, hidden, None if trunk is None else trunk.size, **settings)
    make_orthogonal(critic.mlp, rng, last=1.0)
    return with_memory(config, spec, trunk, critic, acts=True)  # `prepare` gives it states to begin with


def head(config: PPO, spec: EnvSpec) -> Head:
    """What the actor's output means."""
    if spec.choices is not None:
        return Categorical()
    return MultiCategorical(spec.branches) if spec.branches else GaussianHead(config.policy.squash)


def log_std(actor: Network) -> Tensor:
    """The log standard deviation (A,) that is a parameter beside the actor's output; (0,) where there is none."""
    return actor.module.log_std.data if isinstance(actor.module, WithLogStd) else actor.flat[:0]


def prepare(state: APPOState, config: PPO, spec: EnvSpec, steps: RolloutTensors) -> Rows:
    """The rows of a turn: values by the critic as it is, log-probabilities by the reference, targets and advantages.

    Modules are in evaluation mode meanwhile (no dropout), as they were when they acted.
    """
    networks = [each for each in (state.actor, state.critic, state.target) if each is not None]
    for each in networks:
        each.module.eval()
    prepared = _prepare(state, config, spec, steps)
    for each in networks:
        each.module.train()
    return prepared


def _prepare(state: APPOState, config: PPO, spec: EnvSpec, steps: RolloutTensors) -> Rows:
    obs, privileged, action, mask = (each.flatten(0, 1) for each in (steps.obs, steps.state, steps.action, steps.mask))
    recurrence, run = recurrence_of(config), None
    if recurrence.recurrent:
        assert steps.carry is not None
        run, begins = run_critic(state.critic, steps), begins_anew(steps, recurrence.sequence_length)
        obs, value = packed(steps.obs, begins, steps.carry), run.value
    else:
        value = state.critic(obs, privileged).squeeze(1).view_as(steps.reward)
    reference, bounds, distributions = steps.log_prob, {}, action[:, :0]
    if isinstance(config, APPO) or _exact_divergence(config):
        network, policy = state.actor if state.target is None else state.target, head(config, spec)
        out = mask_forbidden(network(obs), mask > 0)
        if _exact_divergence(config):
            distributions = policy.parameters(out, log_std(network))
    if isinstance(config, APPO):
        limits = config.correction
        bounds = {"rho_bar": limits.rho_bar, "c_bar": limits.c_bar, "pg_rho_bar": limits.advantage_rho_bar}
        reference = policy(out, log_std(network), action)[0].view_as(steps.log_prob)
    target, advantage = vtrace(
        behaviour_log_prob=steps.log_prob,
        target_log_prob=reference,
        reward=steps.reward,
        value=value,
        next_value=_next_values(state.critic, steps, value, run),
        terminated=steps.terminated,
        truncated=steps.truncated,
        gamma=config.returns.gamma,
        lambda_=config.returns.gae_lambda,
        **bounds,
    )
    numbers = [steps.log_prob, reference, advantage, target, value]
    if run is not None:
        distributions = distributions.view(*steps.valid.shape, distributions.shape[1])
        vectors = [obs, packed(steps.obs, begins, run.before), steps.state, steps.action, steps.mask, distributions]
        return RolloutSequences(recurrence.sequence_length, steps.valid, vectors, numbers)
    columns = [obs, privileged, action, mask, distributions, *(each.flatten() for each in numbers)]
    if not steps.valid.all():
        valid = steps.valid.flatten()
        columns = [each[valid] for each in columns]
    return RolloutRows(*columns)


def _exact_divergence(config: PPO) -> bool:
    return isinstance(config.rate_control, AdaptiveRate) and config.rate_control.divergence == "exact"


def _next_values(critic: Network, steps: RolloutTensors, value: Tensor, run: CriticRun | None) -> Tensor:
    """V(s') (T, N): the value of the next row, but that of `next_obs` where an episode ends and in the last row."""
    following = value.roll(-1, 0)
    apart = steps.terminated | steps.truncated
    apart[-1] = True
    which = apart.flatten().nonzero().squeeze(1)
    if run is not None:
        following.view(-1)[which] = values_after(critic, steps, run, which)
        return following
    # Padded with the last row to a power of two, so that few sizes occur and the network's work space is used again.
    padded = torch.cat((which, which[-1:].expand((1 << (len(which) - 1).bit_length()) - len(which))))
    obs, privileged = (each.flatten(0, 1)[padded] for each in (steps.next_obs, steps.next_state))
    following.view(-1)[which] = critic(obs, privileged).squeeze(1)[: len(which)]
    return following


def learn_rollout(
    state: APPOState,
    config: PPO,
    spec: EnvSpec,
    rollout: RolloutTensors,
    orders: Tensor,
    rate: float,
    count: int,
    updates: int,
) -> tuple[int, float, dict[str, list[Tensor]]]:
    """Up to `count` updates with one rollout: all minibatches of all epochs.

    orders (epochs, R): the order of the R valid rows, or of the sequences that hold one, in each epoch. updates: made
    before. Returns how many updates were made, the learning rate after them, which is another where it adapts, and the
    values of each metric.
    """
    rows = prepare(state, config, spec, rollout)
    return learn_rows(state, config, spec, rows, orders, rate, count, updates)


def learn_rows(
    state: APPOState,
    config: PPO,
    spec: EnvSpec,
    rows: Rows,
    orders: Tensor,
    rate: float,
    count: int,
    updates: int,
) -> tuple[int, float, dict[str, list[Tensor]]]:
    """As `learn_rollout`, with the rows of a rollout that is prepared already."""
    metrics, made, stopped = defaultdict[str, list[Tensor]](list), 0, False
    if not len(rows):
        return made, rate, {}
    if config.returns.normalise_advantages and config.returns.normalise_over == "rollout":
        rows.normalise_advantages()
    parts = across.smallest(min(config.rollouts.minibatches, len(rows)))
    minibatches = (batch for order in orders for batch in rows.minibatches(order, parts))
    for batch in itertools.islice(minibatches, count):
        # In the first update of a turn without a target network, the policy still is its reference.
        moved = made > 0 or state.target is not None
        found, rate, stopped = learn_minibatch(state, config, spec, batch, rate, updates + made, moved)
        for name, value in found.items():
            metrics[name].append(value)
        if stopped:
            break
        made += 1
    metrics["explained_variance"] = [rows.explained_variance()]
    if config.objective.target_kl is not None:
        metrics["kl_stops"] = [orders.new_tensor(float(stopped), dtype=torch.float32)]
    return made, rate, metrics


def learn_minibatch(
    state: APPOState, config: PPO, spec: EnvSpec, batch: Minibatch, rate: float, updates: int, moved: bool = True
) -> tuple[dict[str, Tensor], float, bool]:
    """One step on  policy loss + value_coefficient * value loss - entropy_coefficient * mean entropy.

    updates: made before this one. moved: whether the policy may differ from its reference, so that their divergence
    can adapt the rate or stop the turn. Returns metrics, which stay tensors, the rate of the next step, and whether
    `target_kl` stops the turn, in which case no step is made. A target network then moves at once: it moves by the
    number of updates otherwise, so every later turn would end before its first update.
    """
    metrics, kl = update_actor(state, config, spec, batch)
    if config.objective.target_kl is not None or isinstance(config.rate_control, AdaptiveRate):
        kl = across.mean(kl)
    metrics["approx_kl"] = kl
    if config.objective.target_kl is not None and moved and float(kl) > 1.5 * config.objective.target_kl:
        if isinstance(config, APPO) and state.target is not None:
            state.target.follow(state.actor, config.target.tau)
        return metrics, rate, True
    metrics |= update_critic(state, config, batch)
    if isinstance(config.rate_control, AdaptiveRate) and moved:
        rate = adapted_rate(config.rate_control, rate, float(kl))
    parts = [
        (state.actor.flat, state.actor.gradient, state.actor_optimiser),
        (state.critic.flat, state.critic.gradient, state.critic_optimiser),
    ]
    apply_jointly(parts, rate, config.optimisation.max_grad_norm)
    if isinstance(config, APPO) and state.target is not None and (updates + 1) % (config.target.target_every or 1) == 0:
        state.target.follow(state.actor, config.target.tau)
    return metrics, rate, False


def update_actor(state: APPOState, config: PPO, spec: EnvSpec, batch: Minibatch) -> tuple[dict[str, Tensor], Tensor]:
    """The actor's gradient; returns metrics and the divergence from the reference."""
    policy, advantage = head(config, spec), batch.advantage
    returns = config.returns
    if (
        returns.normalise_advantages
        and returns.normalise_over == "minibatch"
        and (len(advantage) > 1 or across.several())
    ):
        bar = config.correction.advantage_rho_bar if isinstance(config, APPO) else 1.0
        advantage = standardise(advantage, (batch.reference - batch.behaviour).exp().clamp(max=bar))
    out, tape = state.actor.forward(batch.obs)
    every, out = out, mask_forbidden(batch.of_learned(out), batch.mask)
    log_prob, entropy, saved = policy(out, log_std(state.actor), batch.action)
    cap = config.correction.ratio_cap if isinstance(config, APPO) else 1.0
    loss, d_log_prob, ratio = policy_loss(
        log_prob, batch.behaviour, batch.reference, advantage, config.objective.clip, cap
    )
    d_out, d_log_std = policy.gradient(saved, d_log_prob, -config.objective.entropy_coefficient / len(advantage))
    state.actor.backward(tape, batch.for_all(d_out, every))
    state.actor.gradient[: len(d_log_std)] = d_log_std
    clipped = ((ratio - 1.0).abs() > config.objective.clip).to(ratio.dtype).mean()
    metrics = {"policy_loss": loss, "entropy": entropy.mean(), "clip_fraction": clipped}
    if _exact_divergence(config):
        return metrics, policy.divergence(batch.policy, policy.parameters(out, log_std(state.actor))).mean()
    return metrics, divergence(log_prob, batch.reference)


def update_critic(state: APPOState, config: PPO, batch: Minibatch) -> dict[str, Tensor]:
    """The critic's gradient."""
    out, tape = state.critic.forward(batch.obs if batch.critic_obs is None else batch.critic_obs, batch.state)
    value = batch.of_learned(out)
    loss, d_value = value_loss(value.squeeze(1), batch.target, batch.value, config.objective.value_clip)
    state.critic.backward(tape, batch.for_all((config.objective.value_coefficient * d_value).unsqueeze(1), out))
    return {"value_loss": loss, "value": value.mean()}


def adapted_rate(control: AdaptiveRate, rate: float, kl: float) -> float:
    """The rate of the next step: smaller where the divergence is too large, larger where it is too small."""
    factor = 1.0
    if kl > control.desired_kl * control.kl_factor:
        factor = 1.0 / control.factor
    elif 0.0 < kl < control.desired_kl / control.kl_factor:
        factor = control.factor
    return min(max(rate * factor, control.lowest), control.highest)


def policy_description(config: PPO, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    return describe_policy_of_rollouts(config, spec)
