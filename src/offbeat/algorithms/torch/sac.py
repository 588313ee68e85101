"""Soft actor-critic for Box actions: a squashed Gaussian actor, E critics with a slow copy Q', and a temperature.

An update is one step on each of these losses, with a ~ pi(.|s) and a' ~ pi(.|s') of the actor before the update:

    critic       1/2 sum_e mean (Q_e(s, a) - y)^2,  y = r + discount (min_e Q'_e(s', a') - temperature * log pi(a'|s'))
    actor        mean (temperature * log pi(a|s) - min_e Q_e(s, a))
    temperature  log temperature * (entropy - target entropy),  entropy = -mean log pi(a|s)

In the critic's loss a is the action that was taken. The gradients stand in `losses`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import SAC, Learned
from offbeat.algorithms.configs.groups import learned_rows
from offbeat.algorithms.descriptions import describe_policy, refuse_images
from offbeat.algorithms.torch.actor_critic import check_output_shape, make_actor_and_critics, zero_inputs
from offbeat.algorithms.torch.batch import Batch, BlockSums, blocks
from offbeat.algorithms.torch.differentiate import Network, Tape
from offbeat.algorithms.torch.distributions import squash, squash_gradient
from offbeat.algorithms.torch.losses import squared_error_gradient, values_of_actions, weighted
from offbeat.algorithms.torch.networks import OwnSampler, UserSampler
from offbeat.algorithms.torch.optimise import Optimiser, apply, make_optimiser
from offbeat.types import EnvSpec


@dataclass
class SACState:
    """All that learning changes."""

    actor: Network
    critic: Network
    target: Network
    log_temperature: Tensor  # (1,)
    actor_optimiser: Optimiser
    critic_optimiser: Optimiser
    temperature_optimiser: Optimiser


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> SACState:
    """First weights from `rng`."""
    refuse_images("SAC and REDQ", spec)
    actor, critic = make_actor_and_critics(config, spec, rng, device, dtype, 2 * spec.action_size)
    obs, state, action = zero_inputs(spec, actor)
    sampler, size = isinstance(actor.module, UserSampler), spec.action_size
    rule = (
        f"return (mean, log_std), each (batch, {size}), or have a method sample(obs, noise) that returns an action "
        f"(batch, {size}) and its log_prob (batch,)"
    )
    check_output_shape("actor", actor, (obs, action) if sampler else (obs,), size + 1 if sampler else 2 * size, rule)
    check_output_shape("critic", critic, (obs, state, action), None, "")
    return new_state(config, actor, critic)


def new_state(config: SAC, actor: Network, critic: Network, target: Network | None = None) -> SACState:
    """The state around new networks. target: the slow copy of the critics, where there is one already."""
    temperature = config.temperature.initial if isinstance(config.temperature, Learned) else config.temperature.value
    log_temperature = actor.flat.new_tensor([temperature]).log()
    of_actor, of_critic = (
        make_optimiser(config.optimisation, actor.flat),
        make_optimiser(config.optimisation, critic.flat),
    )
    of_temperature = make_optimiser(config.optimisation, log_temperature, decay=False)
    return SACState(actor, critic, target or critic.copy(), log_temperature, of_actor, of_critic, of_temperature)


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for actions at s and at s', and to choose critics."""
    if config.target_subset is None:
        return (2, learned_rows(config), spec.action_size)
    return (2 * learned_rows(config) * spec.action_size + config.critic_networks.critics,)


def split_noise(config: SAC, noise: Tensor) -> tuple[Tensor, Tensor | None]:
    """The policy's noise (2, B, A), and which critics (M,) the target takes the minimum of; None is all."""
    if config.target_subset is None:
        return noise, None
    for_policy, for_critics = noise[: -config.critic_networks.critics], noise[-config.critic_networks.critics :]
    # Those with the smallest of independent draws: all subsets are equally likely.
    return for_policy.view(2, learned_rows(config), -1), for_critics.argsort()[: config.target_subset]


def min_over_critics(q: Tensor, members: Tensor | None) -> Tensor:
    """The minimum over critics (E, ...), all or the drawn ones."""
    return (q if members is None else q.index_select(0, members)).amin(0)


Sample = tuple[Tensor, Tensor, Tape]
"""Actions (B, A) in [-1, 1], their log-probability (B,), and the tape for `sample_gradient`."""


def sample(config: SAC, actor: Network, obs: Tensor, noise: Tensor, keep_tape: bool = True) -> Sample:
    """The policy's actions for observations (B, O) and standard normal noise (B, A).

    keep_tape: False where no gradient will be asked for. A policy that draws its actions itself gets no noise.
    """
    own = isinstance(actor.module, OwnSampler | UserSampler)
    parts = (obs, noise) if isinstance(actor.module, UserSampler) else (obs,)
    out, tape = actor.forward(*parts) if keep_tape else (actor(*parts), None)
    if own:
        return out[:, :-1], out[:, -1], (tape, None)
    action, log_prob, saved = squash(out, noise, (config.policy.log_std_min, config.policy.log_std_max))
    return action, log_prob, (tape, saved)


def sample_gradient(config: SAC, actor: Network, tape: Tape, d_action: Tensor, d_log_prob: Tensor, add: bool) -> None:
    """Carries gradients at the actions (B, A) and the log-probabilities (1,) back to the actor's parameters."""
    actor_tape, saved = tape
    if saved is None:
        d_out = torch.cat((d_action, d_log_prob.expand(len(d_action), 1)), 1)
    else:
        d_out = squash_gradient(saved, d_action, d_log_prob, (config.policy.log_std_min, config.policy.log_std_max))
    actor.backward(actor_tape, d_out, add)


@dataclass(frozen=True)
class SampledBlock:
    """Rows of a batch, the policy's noise (2, B, A) for s and s', and its actions at both, where they are known."""

    batch: Batch
    noise: Tensor
    samples: tuple[Sample, Sample] | None = None

    def sample(self, config: SAC, actor: Network) -> Sample:
        """Actions at s."""
        return self.samples[0] if self.samples else sample(config, actor, self.batch.obs, self.noise[0])

    def sample_next(self, config: SAC, actor: Network) -> Sample:
        """Actions at s', which no gradient goes back through."""
        return self.samples[1] if self.samples else sample(config, actor, self.batch.next_obs, self.noise[1], False)


def sample_blocks(state: SACState, config: SAC, batch: Batch, noise: Tensor) -> list[SampledBlock]:
    """The batch in blocks. The actor takes s and s' of a single block in one pass, which is faster than two."""
    count, explicit = len(batch), state.actor.explicit and state.critic.explicit
    parts = blocks(count, explicit)
    if len(parts) > 1 or not explicit:
        return [SampledBlock(batch.rows(rows), noise[:, rows]) for rows in parts]
    both = torch.cat((batch.obs, batch.next_obs))
    action, log_prob, (tape, saved) = sample(config, state.actor, both, noise.flatten(0, 1))
    tapes = state.actor.tape_of_first_rows(tape, count), tuple(each[:count] for each in saved)
    at_obs, at_next = (action[:count], log_prob[:count], tapes), (action[count:], log_prob[count:], None)
    return [SampledBlock(batch, noise, (at_obs, at_next))]


def update_critic(
    state: SACState, config: SAC, parts: list[SampledBlock], members: Tensor | None, temperature: Tensor, rate: float
) -> tuple[dict[str, Tensor], Tensor]:
    """One step on  1/2 sum_e mean (Q_e(s, a) - y)^2.  Returns metrics and the TD errors Q_e - y (E, B)."""
    sums, count = BlockSums(), sum(len(block.batch) for block in parts)
    for index, block in enumerate(parts):
        batch = block.batch
        next_action, next_log_prob, _ = block.sample_next(config, state.actor)
        next_q = min_over_critics(state.target(batch.next_obs, batch.next_state, next_action), members)
        target = batch.reward + batch.discount * (next_q - temperature * next_log_prob)
        gradient = squared_error_gradient(target, 1.0 / count, batch.weight)
        q = state.critic.forward_backward((batch.obs, batch.state, batch.action), gradient, add=index > 0)
        error = q - target
        sums.add(error, loss=weighted(error.square(), batch.weight), q=q)
    apply(state.critic.flat, state.critic.gradient, state.critic_optimiser, rate, config.optimisation.max_grad_norm)
    return {
        "critic_loss": sums["loss"] * (0.5 / count),
        "q": sums["q"] / (count * config.critic_networks.critics),
    }, sums.errors


def update_actor(
    state: SACState, config: SAC, parts: list[SampledBlock], temperature: Tensor, rate: float
) -> dict[str, Tensor]:
    """One step on  mean (temperature * log pi(a|s) - min_e Q_e(s, a)),  or with the mean over e."""
    sums, count = BlockSums(), sum(len(block.batch) for block in parts)
    for index, block in enumerate(parts):
        action, log_prob, tape = block.sample(config, state.actor)
        value, d_action = values_of_actions(state.critic, block.batch, action, config.actor_value, -1.0 / count)
        sample_gradient(config, state.actor, tape, d_action, temperature / count, add=index > 0)
        sums.add(log_prob=log_prob, value=value)
    apply(state.actor.flat, state.actor.gradient, state.actor_optimiser, rate, config.optimisation.max_grad_norm)
    entropy = sums["log_prob"] * (-1.0 / count)
    return {"actor_loss": -temperature * entropy - sums["value"] / count, "entropy": entropy}


def update_temperature(
    state: SACState, config: SAC, usual_target: float | Tensor, entropy: Tensor, rate: float
) -> dict[str, Tensor]:
    """One step on  log temperature * (entropy - target entropy),  where the temperature is learned.

    usual_target: the target entropy where the settings name none.
    """
    if not isinstance(config.temperature, Learned):
        return {}
    target = config.temperature.target_entropy
    gradient = entropy - (usual_target if target is None else target)
    apply(state.log_temperature, gradient, state.temperature_optimiser, rate)
    return {"temperature": state.log_temperature.exp()}


def move_target(state: SACState, config: SAC, updates: int) -> None:
    """Moves the target critics, where that is due after so many updates."""
    if updates % config.target.target_every == 0:
        state.target.follow(state.critic, config.target.tau)


def update(
    state: SACState, config: SAC, spec: EnvSpec, batch: Batch, noise: Tensor, rates: Mapping[str, float], updates: int
) -> tuple[dict[str, Tensor], Tensor]:
    """One update of everything that is due. noise: as `noise_shape` says. updates: made before this one.

    Returns metrics, tensors (1,), and TD errors (E, B).
    """
    temperature = state.log_temperature.exp()
    noise, members = split_noise(config, noise)
    parts = sample_blocks(state, config, batch, noise)
    metrics, errors = update_critic(state, config, parts, members, temperature, rates["critic"])
    if (updates + 1) % config.actor_every == 0:
        metrics |= update_actor(state, config, parts, temperature, rates["actor"])
        metrics |= update_temperature(state, config, -float(spec.action_size), metrics["entropy"], rates["temperature"])
    move_target(state, config, updates + 1)
    return metrics, errors


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    size, limits = spec.action_size, dataclasses.asdict(config.policy)
    return describe_policy(config, "squashed_gaussian", config.own_networks.actor, action_size=size, **limits)
