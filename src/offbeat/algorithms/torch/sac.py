"""Soft actor-critic: a squashed Gaussian actor, E stacked critics with a slow copy, a learned or fixed temperature.

Each update is two halves. The critics are drawn to  r + discount * (min_e Q'_e(s', a') - temperature * log pi(a'|s'));
the actor to actions where  min_e Q_e(s, a) - temperature * log pi(a|s)  is large, and the temperature to where the
policy's entropy is near its target. Both halves use the actor and the temperature that the update began with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.algorithms.configs import SAC, Learned
from offbeat.algorithms.torch.actor_critic import build, check_spaces, towards, try_out, zeros
from offbeat.algorithms.torch.batch import Batch, blocks, total
from offbeat.algorithms.torch.differentiate import Network, Tape
from offbeat.algorithms.torch.networks import OwnSampler
from offbeat.algorithms.torch.optimise import Adam, apply
from offbeat.algorithms.torch.squashed import squash, squash_gradient
from offbeat.references import name_of
from offbeat.types import EnvSpec

GROUPS = {"actor": "actor_", "critic": "critic_", "temperature": "temperature_"}
"""Parameter groups, and the prefix of their learning rate and schedule in the config."""


@dataclass
class State:
    """All that learning changes. `updates` counts critic updates."""

    actor: Network
    critic: Network
    target: Network
    log_temperature: Tensor  # (1,)
    actor_adam: Adam
    critic_adam: Adam
    temperature_adam: Adam
    updates: int = 0


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> State:
    """First weights from `rng`."""
    check_spaces(type(config).__name__, spec, discrete=False)
    actor, critic = build(config, spec, rng, device, dtype, 2 * spec.action_size)
    obs, state, action = zeros(spec, actor.flat)
    sampler, size = isinstance(actor.module, OwnSampler), spec.action_size
    rule = (
        f"return (mean, log_std), each (batch, {size}), or have a method sample(obs, noise) that returns an action "
        f"(batch, {size}) and its log_prob (batch,)"
    )
    try_out("actor", actor, (obs, action) if sampler else (obs,), size + 1 if sampler else 2 * size, rule)
    try_out("critic", critic, (obs, state, action), None, "")
    return new_state(config, actor, critic)


def new_state(config: SAC, actor: Network, critic: Network) -> State:
    """The state around new networks."""
    temperature = config.temperature.initial if isinstance(config.temperature, Learned) else config.temperature.value
    log_temperature = actor.flat.new_tensor([temperature]).log()
    flats = actor.flat, critic.flat, log_temperature
    of_actor, of_critic, of_temperature = (Adam(flat, config.adam_epsilon) for flat in flats)
    return State(actor, critic, critic.copy(), log_temperature, of_actor, of_critic, of_temperature)


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for the policy at s and at s', and to draw critics by."""
    if config.target_subset is None:
        return (2, config.batch_size, spec.action_size)
    return (2 * config.batch_size * spec.action_size + config.critics,)


def split_noise(config: SAC, noise: Tensor) -> tuple[Tensor, Tensor | None]:
    """The policy's noise (2, B, A), and which critics (M,) the target takes the minimum of; None is all."""
    if config.target_subset is None:
        return noise, None
    for_policy, for_critics = noise[: -config.critics], noise[-config.critics :]
    # Those with the least of independent draws: all sets are equally likely.
    return for_policy.view(2, config.batch_size, -1), for_critics.argsort()[: config.target_subset]


def least(q: Tensor, members: Tensor | None) -> Tensor:
    """The minimum over critics (E, ...), all or the drawn ones."""
    return (q if members is None else q.index_select(0, members)).amin(0)


Drawn = tuple[Tensor, Tensor, Tape]
"""Actions (B, A) in [-1, 1], their log-probability (B,), and the tape for `actor_gradient`."""


def sample(config: SAC, actor: Network, obs: Tensor, noise: Tensor) -> Drawn:
    """The policy's actions for observations (B, O) and standard normal noise (B, A)."""
    if isinstance(actor.module, OwnSampler):
        out, tape = actor.forward(obs, noise)
        return out[:, :-1], out[:, -1], (tape, None)
    out, tape = actor.forward(obs)
    action, log_prob, saved = squash(out, noise, (config.log_std_min, config.log_std_max))
    return action, log_prob, (tape, saved)


def actor_gradient(config: SAC, actor: Network, tape: Tape, d_action: Tensor, d_log_prob: Tensor, add: bool) -> None:
    """Carries gradients at the actions (B, A) and the log-probabilities (1,) back to the actor's parameters."""
    to_actor, saved = tape
    if saved is None:
        d_out = torch.cat((d_action, d_log_prob.expand(len(d_action), 1)), 1)
    else:
        d_out = squash_gradient(saved, d_action, d_log_prob, (config.log_std_min, config.log_std_max))
    actor.backward(to_actor, d_out, add)


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch with their noise (2, B, A): for s and for s'. `drawn`: the policy at both, where known."""

    batch: Batch
    noise: Tensor
    drawn: tuple[Drawn, Drawn] | None = None


def pieces(state: State, config: SAC, batch: Batch, noise: Tensor) -> list[Piece]:
    """The batch in blocks; a batch of one block goes through the actor at once, s and s' one below the other."""
    count, explicit = len(batch), state.actor.explicit and state.critic.explicit
    parts = blocks(count, explicit)
    if len(parts) > 1 or not explicit:
        return [Piece(batch.rows(rows), noise[:, rows]) for rows in parts]
    both = torch.cat((batch.obs, batch.next_obs))
    action, log_prob, (tape, saved) = sample(config, state.actor, both, noise.flatten(0, 1))
    tapes = state.actor.first(tape, count), tuple(each[:count] for each in saved)
    now, following = (action[:count], log_prob[:count], tapes), (action[count:], log_prob[count:], None)
    return [Piece(batch, noise, (now, following))]


def update_critic(
    state: State, config: SAC, parts: list[Piece], members: Tensor | None, temperature: Tensor, rate: float
) -> dict[str, Tensor]:
    """One step on  1/2 sum_e mean (Q_e - target)^2,  whose gradient at Q_e is (Q_e - target) / B."""
    errors, values, count = [], [], sum(len(piece.batch) for piece in parts)
    for index, piece in enumerate(parts):
        batch = piece.batch
        drawn = piece.drawn[1] if piece.drawn else sample(config, state.actor, batch.next_obs, piece.noise[1])
        next_action, next_log_prob, _ = drawn
        next_q = least(state.target(batch.next_obs, batch.next_state, next_action), members)
        target = batch.reward + batch.discount * (next_q - temperature * next_log_prob)
        q = state.critic.fit((batch.obs, batch.state, batch.action), towards(target, 1.0 / count), add=index > 0)
        errors.append((q - target).square().sum())
        values.append(q.sum())
    apply(state.critic.flat, state.critic.gradient, state.critic_adam, rate, config.max_grad_norm)
    return {"critic_loss": total(errors) * (0.5 / count), "q": total(values) / (count * config.critics)}


def update_actor(state: State, config: SAC, parts: list[Piece], temperature: Tensor, rate: float) -> dict[str, Tensor]:
    """One step on  mean (temperature * log pi - min_e Q_e)  (or the mean over e).

    Of the minimum, only the least Q of each row has a gradient, -1 / B.
    """
    log_probs, values, count = [], [], sum(len(piece.batch) for piece in parts)
    for index, piece in enumerate(parts):
        batch = piece.batch
        drawn = piece.drawn[0] if piece.drawn else sample(config, state.actor, batch.obs, piece.noise[0])
        action, log_prob, tape = drawn
        q, critic_tape = state.critic.forward(batch.obs, batch.state, action)
        if config.actor_value == "mean":
            climbed = q.mean(0)
            d_action = state.critic.backward_to(2, critic_tape, torch.full_like(q, -1.0 / (count * len(q))))
        else:
            climbed, which = q.min(0)
            d_action = state.critic.backward_to(2, critic_tape, torch.full_like(climbed, -1.0 / count), which)
        actor_gradient(config, state.actor, tape, d_action, temperature / count, add=index > 0)
        log_probs.append(log_prob.sum())
        values.append(climbed.sum())
    apply(state.actor.flat, state.actor.gradient, state.actor_adam, rate, config.max_grad_norm)
    entropy = total(log_probs) * (-1.0 / count)
    return {"actor_loss": -temperature * entropy - total(values) / count, "entropy": entropy}


def update_temperature(
    state: State, config: SAC, usual_target: float | Tensor, entropy: Tensor, rate: float
) -> dict[str, Tensor]:
    """One step on  -log_temperature * mean (log pi + target entropy),  where it is learned.

    usual_target: the entropy to aim at where the settings name none.
    """
    if not isinstance(config.temperature, Learned):
        return {}
    target = config.temperature.target_entropy
    apply(state.log_temperature, entropy - (usual_target if target is None else target), state.temperature_adam, rate)
    return {"temperature": state.log_temperature.exp()}


def finish(state: State, config: SAC) -> None:
    """Counts the update, and moves the target where it is due."""
    state.updates += 1
    if state.updates % config.target_every == 0:
        state.target.follow(state.critic, config.tau)


def update(
    state: State, config: SAC, spec: EnvSpec, batch: Batch, noise: Tensor, rates: dict[str, float]
) -> dict[str, Tensor]:
    """One update of everything that is due. noise: as `noise_shape` says. Metrics stay tensors, (1,)."""
    temperature = state.log_temperature.exp()
    noise, members = split_noise(config, noise)
    parts = pieces(state, config, batch, noise)
    metrics = update_critic(state, config, parts, members, temperature, rates["critic"])
    if (state.updates + 1) % config.actor_every == 0:
        metrics |= update_actor(state, config, parts, temperature, rates["actor"])
        metrics |= update_temperature(state, config, -float(spec.action_size), metrics["entropy"], rates["temperature"])
    finish(state, config)
    return metrics


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    description: dict[str, Any] = {
        "kind": "squashed_gaussian" if config.actor is None else "module",
        "head": "squashed_gaussian",
        "action_size": spec.action_size,
        "log_std_min": config.log_std_min,
        "log_std_max": config.log_std_max,
    }
    if config.actor is None:
        return description | {"activation": config.activation}
    return description | {"actor": name_of(config.actor)}
