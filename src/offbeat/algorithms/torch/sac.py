"""Soft actor-critic: a squashed Gaussian actor, E stacked critics with a slow copy, a learned or fixed temperature.

Each update is two halves. The critics are drawn to  r + discount * (min_e Q'_e(s', a') - temperature * log pi(a'|s'));
the actor to actions where  min_e Q_e(s, a) - temperature * log pi(a|s)  is large, and the temperature to where the
policy's entropy is near its target. Both halves use the actor and the temperature that the update began with.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.configs import SAC, Learned
from offbeat.algorithms.torch.differentiate import Network, Tape
from offbeat.algorithms.torch.networks import MLP, Critics, OwnActor, OwnCritics, OwnSampler, own_name, short_name
from offbeat.algorithms.torch.optimise import Adam, apply
from offbeat.algorithms.torch.squashed import squash, squash_gradient
from offbeat.errors import SpaceError, UsageError
from offbeat.references import name_of, resolve
from offbeat.types import EnvSpec

GROUPS = ("actor", "critic", "temperature")
"""Parameter groups, each with `GROUP_learning_rate` and `GROUP_schedule` in the config."""
BLOCK_ROWS = 512
"""Large batches are taken in blocks of so many rows."""


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


@dataclass(frozen=True)
class Batch:
    """`Transitions` as tensors on the learner's device, normalised and scaled."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    state: Tensor
    next_state: Tensor


def init(config: SAC, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> State:
    """First weights from `rng`; a user's own modules draw theirs from torch, seeded by it."""
    if spec.layout.images:
        image = spec.layout.images[0]
        raise SpaceError(
            f"{spec.name}: the observation {image.name!r} is an image {image.shape}, but SAC's networks take vectors "
            "(there is no pixel encoder yet): flatten it with gymnasium.wrappers.FlattenObservation, or leave it out"
        )
    how = config.gradients == "auto" and device.type == "cpu", config.compile
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**62)))
        actor_module, critic_module = _actor(config, spec, rng), _critics(config, spec, rng)
    actor = Network(actor_module.to(device, dtype), short_name if config.actor is None else own_name, *how)
    critic = Network(critic_module.to(device, dtype), short_name if config.critic is None else str, *how)
    _check_shapes(spec, actor, critic)
    temperature = config.temperature.initial if isinstance(config.temperature, Learned) else config.temperature.value
    log_temperature = torch.tensor([temperature], device=device, dtype=dtype).log()
    adams = Adam(actor.flat), Adam(critic.flat), Adam(log_temperature)
    return State(actor, critic, critic.copy(), log_temperature, *adams)


def _actor(config: SAC, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.actor is not None:
        module = resolve(config.actor, "actor")(spec)
        return OwnSampler(module) if hasattr(module, "sample") else OwnActor(module)
    sizes = (spec.observation_size, *config.hidden, 2 * spec.action_size)
    return MLP(sizes, activation=config.activation, layer_norm=config.layer_norm, rng=rng)


def _critics(config: SAC, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.critic is not None:
        make = resolve(config.critic, "critic")
        return OwnCritics([make(spec) for _ in range(config.critics)])
    hidden = config.hidden if config.critic_hidden is None else config.critic_hidden
    return Critics(spec, config.critics, hidden, activation=config.activation, layer_norm=config.layer_norm, rng=rng)


def _check_shapes(spec: EnvSpec, actor: Network, critic: Network) -> None:
    """Two rows of zeros through both networks, so that a user's own modules fail here and in words."""
    obs, state, noise = (actor.flat.new_zeros(2, n) for n in (spec.observation_size, spec.state_size, spec.action_size))
    sampler, size = isinstance(actor.module, OwnSampler), spec.action_size
    for name, network, inputs in (
        ("actor", actor, (obs, noise) if sampler else (obs,)),
        ("critic", critic, (obs, state, noise)),
    ):
        network.module.eval()  # so that batch norm and its like do not count these rows
        try:
            out = network(*inputs)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise UsageError(f"your {name} raised {type(error).__name__} on two rows of zeros: {error}") from error
        network.module.train()
        if name == "actor" and out.shape != (2, size + 1 if sampler else 2 * size):
            raise UsageError(
                f"your actor gave {tuple(out.shape)} for 2 rows: return (mean, log_std), each (batch, {size}), or have "
                f"a method sample(obs, noise) that returns an action (batch, {size}) and its log_prob (batch,)"
            )


def noise_shape(config: SAC, spec: EnvSpec) -> tuple[int, ...]:
    """Standard normal draws that one update takes: for the policy at s and at s'."""
    return (2, config.batch_size, spec.action_size)


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
class Block:
    """Some rows of a batch with their noise (2, B, A): for s and for s'. `drawn`: the policy at both, where known."""

    batch: Batch
    noise: Tensor
    drawn: tuple[Drawn, Drawn] | None = None


def blocks(config: SAC, state: State, batch: Batch, noise: Tensor) -> list[Block]:
    """The batch in pieces whose activations stay in the cache, where that is of use.

    A batch of one piece goes through the actor once, s and s' one below the other: the actor does not change in
    between. A user's own modules always see the whole batch: to batch norm and its like, pieces are not the same.
    """
    count = len(batch.reward)
    if not (state.actor.explicit and state.critic.explicit):
        return [Block(batch, noise)]
    if count < 2 * BLOCK_ROWS:
        both = torch.cat((batch.obs, batch.next_obs))
        action, log_prob, (tape, saved) = sample(config, state.actor, both, noise.flatten(0, 1))
        tapes = state.actor.first(tape, count), tuple(each[:count] for each in saved)
        now = action[:count], log_prob[:count], tapes
        return [Block(batch, noise, (now, (action[count:], log_prob[count:], None)))]
    pieces = [slice(start, start + BLOCK_ROWS) for start in range(0, count, BLOCK_ROWS)]
    return [
        Block(Batch(*(getattr(batch, each.name)[rows] for each in fields(Batch))), noise[:, rows]) for rows in pieces
    ]


def rows_in(pieces: list[Block]) -> int:
    return sum(len(block.batch.reward) for block in pieces)


def total(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])


def update_critic(
    state: State, config: SAC, pieces: list[Block], temperature: Tensor, rate: float
) -> dict[str, Tensor]:
    """One step on  1/2 sum_e mean (Q_e - target)^2,  whose gradient at Q_e is (Q_e - target) / B."""
    errors, values, count = [], [], rows_in(pieces)
    for index, block in enumerate(pieces):
        batch = block.batch
        drawn = block.drawn[1] if block.drawn else sample(config, state.actor, batch.next_obs, block.noise[1])
        next_action, next_log_prob, _ = drawn
        next_q = state.target(batch.next_obs, batch.next_state, next_action).amin(0)
        target = batch.reward + batch.discount * (next_q - temperature * next_log_prob)
        q, tape = state.critic.forward(batch.obs, batch.state, batch.action)
        error = q - target
        state.critic.backward(tape, error / count, add=index > 0)
        errors.append(error.square().sum())
        values.append(q.sum())
    apply(state.critic.flat, state.critic.gradient, state.critic_adam, rate, config.max_grad_norm)
    return {"critic_loss": total(errors) * (0.5 / count), "q": total(values) / (count * config.critics)}


def update_actor(state: State, config: SAC, pieces: list[Block], temperature: Tensor, rate: float) -> dict[str, Tensor]:
    """One step on  mean (temperature * log pi - min_e Q_e);  only the least Q of each row has a gradient, -1 / B."""
    log_probs, values, count = [], [], rows_in(pieces)
    for index, block in enumerate(pieces):
        batch = block.batch
        drawn = block.drawn[0] if block.drawn else sample(config, state.actor, batch.obs, block.noise[0])
        action, log_prob, tape = drawn
        q, critic_tape = state.critic.forward(batch.obs, batch.state, action)
        least, which = q.min(0)
        d_action = state.critic.backward_to(2, critic_tape, torch.full_like(least, -1.0 / count), which)
        actor_gradient(config, state.actor, tape, d_action, temperature / count, add=index > 0)
        log_probs.append(log_prob.sum())
        values.append(least.sum())
    apply(state.actor.flat, state.actor.gradient, state.actor_adam, rate, config.max_grad_norm)
    entropy = total(log_probs) * (-1.0 / count)
    return {"actor_loss": -temperature * entropy - total(values) / count, "entropy": entropy}


def update_temperature(state: State, target_entropy: float, entropy: Tensor, rate: float) -> dict[str, Tensor]:
    """One step on  -log_temperature * mean (log pi + target_entropy)."""
    apply(state.log_temperature, entropy - target_entropy, state.temperature_adam, rate)
    return {"temperature": state.log_temperature.exp()}


def update(
    state: State, config: SAC, spec: EnvSpec, batch: Batch, noise: Tensor, rates: dict[str, float]
) -> dict[str, Tensor]:
    """One update of everything that is due. noise (2, B, A): for s and for s'. Metrics stay tensors, (1,)."""
    temperature = state.log_temperature.exp()
    pieces = blocks(config, state, batch, noise)
    metrics = update_critic(state, config, pieces, temperature, rates["critic"])
    if state.updates % config.actor_every == 0:
        metrics |= update_actor(state, config, pieces, temperature, rates["actor"])
        if isinstance(config.temperature, Learned):
            target = config.temperature.target_entropy
            target = -float(spec.action_size) if target is None else target
            metrics |= update_temperature(state, target, metrics["entropy"], rates["temperature"])
    state.updates += 1
    if state.updates % config.target_every == 0:
        state.target.follow(state.critic, config.tau)
    return metrics


def policy_description(config: SAC, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    description: dict[str, Any] = {
        "kind": "squashed_gaussian" if config.actor is None else "module",
        "action_size": spec.action_size,
        "log_std_min": config.log_std_min,
        "log_std_max": config.log_std_max,
    }
    if config.actor is None:
        return description | {"activation": config.activation}
    return description | {"actor": name_of(config.actor)}
