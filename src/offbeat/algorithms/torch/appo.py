"""Asynchronous PPO, and PPO as its case without delay: an actor, a critic of states, and rollouts that an actor made.

A turn with a rollout begins with `prepare`: values and advantages by V-trace, which is GAE where the weights that acted
are those that learn. Then minibatches of its rows move the actor to larger advantages, as far as the clipped ratio to
its reference lets it, and the critic to the value targets. The reference is the policy as the turn began, or a target
network that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.configs import APPO, PPO, AdaptiveRate
from offbeat.algorithms.torch.actor_critic import network, refuse_images, refuse_sampler, try_out
from offbeat.algorithms.torch.batch import allowed
from offbeat.algorithms.torch.clipped import divergence, policy_loss, standardise, value_loss
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.likelihood import Categorical, Gaussian, Head, MultiCategorical
from offbeat.algorithms.torch.networks import (
    MLP,
    Layer,
    OwnNetwork,
    OwnSampler,
    OwnValues,
    Values,
    WithDeviation,
    check_apart,
    make_orthogonal,
)
from offbeat.algorithms.torch.optimise import Optimiser, apply_jointly, make_optimiser
from offbeat.algorithms.torch.randomness import seeded
from offbeat.algorithms.torch.returns import vtrace
from offbeat.errors import UsageError
from offbeat.references import name_of, resolve
from offbeat.types import EnvSpec

GROUPS = {"learning": ""}
"""One group of parameters: its learning rate and schedule have no prefix in the config."""


@dataclass
class State:
    """All that learning changes. target: the reference's network, or None. rate_factor: of an adaptive rate."""

    actor: Network
    critic: Network
    target: Network | None
    actor_optimiser: Optimiser
    critic_optimiser: Optimiser
    rate_factor: Tensor
    updates: int = 0


@dataclass(frozen=True)
class Steps:
    """A rollout as tensors: T consecutive steps of N environments, normalised and scaled.

    obs, next_obs (T, N, O), state, next_state (T, N, S), action (T, N, A), reward, log_prob (T, N): log_prob is of who
    acted. mask (T, N, K): 1 for actions that were allowed, 0 for others. terminated, truncated, valid (T, N) bool;
    truncated also where an episode was broken off.
    """

    obs: Tensor
    next_obs: Tensor
    state: Tensor
    next_state: Tensor
    action: Tensor
    mask: Tensor
    reward: Tensor
    log_prob: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor


class Prepared:
    """The rows (R, ...) of a rollout that learning uses, packed, so that an epoch is one gather.

    numbers: log-probabilities of who acted and of the reference, advantage, value target, and the value before.
    """

    def __init__(self, obs: Tensor, state: Tensor, action: Tensor, mask: Tensor, *numbers: Tensor) -> None:
        vectors = obs, state, action, mask
        self._sizes = [*(each.shape[1] for each in vectors), *(1 for _ in numbers)]
        self._rows = torch.cat((*vectors, *(each.unsqueeze(1) for each in numbers)), 1)

    def __len__(self) -> int:
        return len(self._rows)

    def explained_variance(self) -> Tensor:
        """The share of the value targets' variance that the values before the turn account for; 0 without any."""
        target, value = self._rows[:, -2], self._rows[:, -1]
        variance = target.var(correction=0)
        return torch.where(variance > 0, 1.0 - (target - value).var(correction=0) / variance, 0.0)

    def minibatches(self, order: Tensor, count: int) -> Iterator[Minibatch]:
        """All rows, in this order (R,), in `count` parts whose sizes differ by one at most."""
        rows = self._rows.index_select(0, order)
        for part in rows.tensor_split(count):
            obs, state, action, mask, *numbers = part.split(self._sizes, 1)
            yield Minibatch(obs, state, action, mask > 0, *(each.squeeze(1) for each in numbers))


@dataclass(frozen=True)
class Minibatch:
    """Some rows of a rollout: obs (B, O), state (B, S), action (B, A), mask (B, K) bool, and five numbers (B,)."""

    obs: Tensor
    state: Tensor
    action: Tensor
    mask: Tensor
    behaviour: Tensor
    reference: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor


def init(config: PPO, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype) -> State:
    """First weights from `rng`: orthogonal, with a last layer of the actor that makes all actions alike."""
    refuse_images(type(config).__name__, spec)
    _refuse_idle(config, spec)
    with seeded(int(rng.integers(2**62)), device):
        own_actor, own_critic = _actor(config, spec, rng), _critic(config, spec, rng)
        check_apart(actor=own_actor, critic=own_critic)
        actor = network(config, "actor", own_actor, device, dtype)
        critic = network(config, "critic", own_critic, device, dtype)
    refuse_sampler(type(config).__name__, actor, "what the policy is made of")
    obs, state = (actor.flat.new_zeros(2, size) for size in (spec.observation_size, spec.state_size))
    try_out("actor", actor, (obs,), _outputs(config, spec), f"return {_outputs(config, spec)} numbers per row")
    try_out("critic", critic, (obs, state), 1, "return one value per row")
    target = actor.copy() if isinstance(config, APPO) and config.target_every is not None else None
    of_actor, of_critic = (make_optimiser(config.optimiser, each.flat, config.adam_epsilon) for each in (actor, critic))
    return State(actor, critic, target, of_actor, of_critic, torch.ones((), dtype=torch.float64))


def _refuse_idle(config: PPO, spec: EnvSpec) -> None:
    """Refuses settings of Box actions that have nothing to act on."""
    box = spec.choices is None and not spec.branches
    for name in ("squash", "state_dependent_std", "initial_log_std"):
        if not box and getattr(config, name) != type(config).__dataclass_fields__[name].default:
            raise UsageError(f"{name} is about Box actions, which {spec.name} does not have; leave it out")
    if config.state_dependent_std and config.actor is not None and config.initial_log_std != 0.0:
        raise UsageError("initial_log_std is up to your own actor with state_dependent_std; leave it out")


def _outputs(config: PPO, spec: EnvSpec) -> int:
    """Numbers that describe the policy in one state."""
    if spec.choices is not None:
        return spec.choices
    return sum(spec.branches) or spec.action_size * (2 if config.state_dependent_std else 1)


def _actor(config: PPO, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    sizes = (spec.observation_size, *config.hidden, _outputs(config, spec))
    if config.actor is not None:
        own = resolve(config.actor, "actor")(spec)
        if hasattr(own, "log_std") and not config.state_dependent_std:
            raise UsageError(
                "your actor has a log_std of its own, beside the one that ppo and appo learn: rename it, or return it "
                "after the means and set state_dependent_std"
            )
        module: nn.Module = OwnSampler(own) if hasattr(own, "sample") else OwnNetwork(own)
    else:
        mlp = MLP(sizes, activation=config.activation, layer_norm=config.layer_norm, rng=rng)
        module = make_orthogonal(mlp, rng, last=0.01)
    if spec.choices is not None or spec.branches:
        return module
    initial = torch.full((spec.action_size,), config.initial_log_std, dtype=torch.float64)
    if not config.state_dependent_std:
        return WithDeviation(module, initial)
    if isinstance(module, MLP):
        last = module.layers[-1]
        assert isinstance(last, Layer)
        last.bias.data[spec.action_size :] = initial
    return module


def _critic(config: PPO, spec: EnvSpec, rng: np.random.Generator) -> nn.Module:
    if config.critic is not None:
        return OwnValues(resolve(config.critic, "critic")(spec))
    hidden = config.hidden if config.critic_hidden is None else config.critic_hidden
    critic = Values(spec, hidden, activation=config.activation, layer_norm=config.layer_norm, rng=rng)
    make_orthogonal(critic.mlp, rng, last=1.0)
    return critic


def head(config: PPO, spec: EnvSpec) -> Head:
    """What the actor's output means."""
    if spec.choices is not None:
        return Categorical()
    return MultiCategorical(spec.branches) if spec.branches else Gaussian(config.squash)


def log_std(actor: Network) -> Tensor:
    """The deviation (A,) that stands beside the actor's output; (0,) where there is none."""
    return actor.module.log_std.data if isinstance(actor.module, WithDeviation) else actor.flat[:0]


def prepare(state: State, config: PPO, spec: EnvSpec, steps: Steps) -> Prepared:
    """Begins a turn: values by the critic as it is, log-probabilities by the reference, targets and advantages.

    Dropout and its like are off meanwhile, as they were for who acted.
    """
    networks = [each for each in (state.actor, state.critic, state.target) if each is not None]
    for each in networks:
        each.module.eval()
    prepared = _prepare(state, config, spec, steps)
    for each in networks:
        each.module.train()
    return prepared


def _prepare(state: State, config: PPO, spec: EnvSpec, steps: Steps) -> Prepared:
    obs, privileged, action, mask = (each.flatten(0, 1) for each in (steps.obs, steps.state, steps.action, steps.mask))
    value = state.critic(obs, privileged).squeeze(1).clone().view_as(steps.reward)
    reference, bounds = steps.log_prob, {}
    if isinstance(config, APPO):
        bounds = {"rho_bar": config.rho_bar, "c_bar": config.c_bar, "pg_rho_bar": config.advantage_rho_bar}
        policy = state.actor if state.target is None else state.target
        out = allowed(policy(obs), mask > 0)
        reference = head(config, spec)(out, log_std(policy), action)[0].view_as(steps.log_prob)
    target, advantage = vtrace(
        behaviour_log_prob=steps.log_prob,
        target_log_prob=reference,
        reward=steps.reward,
        value=value,
        next_value=_next_values(state.critic, steps, value),
        terminated=steps.terminated,
        truncated=steps.truncated,
        gamma=config.gamma,
        lambda_=config.gae_lambda,
        **bounds,
    )
    numbers = [each.flatten() for each in (steps.log_prob, reference, advantage, target, value)]
    columns = [obs, privileged, action, mask, *numbers]
    if not steps.valid.all():
        valid = steps.valid.flatten()
        columns = [each[valid] for each in columns]
    return Prepared(*columns)


def _next_values(critic: Network, steps: Steps, value: Tensor) -> Tensor:
    """V of each row's true successor (T, N): the next row's own, but where an episode ends, and after the last row."""
    following = value.roll(-1, 0)
    apart = steps.terminated | steps.truncated
    apart[-1] = True
    which = apart.flatten().nonzero().squeeze(1)
    # Sizes that return, for the sake of the network's work space: the last row fills up.
    padded = torch.cat((which, which[-1:].expand((1 << (len(which) - 1).bit_length()) - len(which))))
    obs, privileged = (each.flatten(0, 1)[padded] for each in (steps.next_obs, steps.next_state))
    following.view(-1)[which] = critic(obs, privileged).squeeze(1)[: len(which)]
    return following


def update(
    state: State, config: PPO, spec: EnvSpec, batch: Minibatch, rate: float, adapt: bool = True
) -> tuple[dict[str, Tensor], float | None]:
    """One step on  policy loss + value_coefficient * value loss - entropy_coefficient * mean entropy.

    adapt: whether the policy may have moved from its reference, so that the rate can tell from it. Returns metrics,
    which stay tensors, and the rate of the next step, which is another where it adapts. The rate is None, and no step
    is made, where the policy has gone further from its reference than `target_kl` lets a turn go. A target network then
    moves at once: it moves by the number of updates otherwise, so every later turn would end before its first update.
    """
    metrics, kl = update_actor(state, config, spec, batch)
    metrics["approx_kl"] = kl
    if config.target_kl is not None and adapt and float(kl) > 1.5 * config.target_kl:
        if isinstance(config, APPO) and state.target is not None:
            state.target.follow(state.actor, config.tau)
        return metrics, None
    metrics |= update_critic(state, config, batch)
    if isinstance(config.rate_control, AdaptiveRate) and adapt:
        rate = adapted(state, config.rate_control, rate, float(kl))
    parts = [
        (state.actor.flat, state.actor.gradient, state.actor_optimiser),
        (state.critic.flat, state.critic.gradient, state.critic_optimiser),
    ]
    apply_jointly(parts, rate, config.max_grad_norm)
    state.updates += 1
    if isinstance(config, APPO) and state.target is not None and state.updates % (config.target_every or 1) == 0:
        state.target.follow(state.actor, config.tau)
    return metrics, rate


def update_actor(state: State, config: PPO, spec: EnvSpec, batch: Minibatch) -> tuple[dict[str, Tensor], Tensor]:
    """The actor's gradient, and how far it is from its reference."""
    policy, advantage = head(config, spec), batch.advantage
    if config.normalise_advantages and len(advantage) > 1:
        bar = config.advantage_rho_bar if isinstance(config, APPO) else 1.0
        advantage = standardise(advantage, (batch.reference - batch.behaviour).exp().clamp(max=bar))
    out, tape = state.actor.forward(batch.obs)
    log_prob, entropy, saved = policy(allowed(out, batch.mask), log_std(state.actor), batch.action)
    cap = config.ratio_cap if isinstance(config, APPO) else 1.0
    loss, d_log_prob, ratio = policy_loss(log_prob, batch.behaviour, batch.reference, advantage, config.clip, cap)
    d_out, d_log_std = policy.gradient(saved, d_log_prob, -config.entropy_coefficient / len(advantage))
    state.actor.backward(tape, d_out)
    state.actor.gradient[: len(d_log_std)] = d_log_std
    clipped = ((ratio - 1.0).abs() > config.clip).to(ratio.dtype).mean()
    metrics = {"policy_loss": loss, "entropy": entropy.mean(), "clip_fraction": clipped}
    return metrics, divergence(log_prob, batch.reference)


def update_critic(state: State, config: PPO, batch: Minibatch) -> dict[str, Tensor]:
    """The critic's gradient."""
    value, tape = state.critic.forward(batch.obs, batch.state)
    loss, d_value = value_loss(value.squeeze(1), batch.target, batch.value, config.value_clip)
    state.critic.backward(tape, (config.value_coefficient * d_value).unsqueeze(1))
    return {"value_loss": loss, "value": value.mean()}


def adapted(state: State, control: AdaptiveRate, rate: float, kl: float) -> float:
    """The rate for a step after such a divergence: smaller where it is too large, larger where it is too small."""
    factor = 1.0
    if kl > control.desired_kl * control.kl_factor:
        factor = 1.0 / control.factor
    elif 0.0 < kl < control.desired_kl / control.kl_factor:
        factor = control.factor
    found = min(max(rate * factor, control.lowest), control.highest)
    if rate > 0.0:
        state.rate_factor *= found / rate
    return found


def policy_description(config: PPO, spec: EnvSpec) -> dict[str, Any]:
    """What `policies.make_policy` needs beside the weights."""
    if spec.choices is not None:
        what: dict[str, Any] = {"kind": "categorical", "log_prob": True}
    elif spec.branches:
        what = {"kind": "multi_categorical", "branches": list(spec.branches), "log_prob": True}
    else:
        what = {"kind": "gaussian", "action_size": spec.action_size, "squashed": config.squash}
        what["state_dependent_std"] = config.state_dependent_std
    if config.actor is None:
        return what | {"activation": config.activation}
    return what | {"kind": "module", "head": what["kind"], "actor": name_of(config.actor)}
