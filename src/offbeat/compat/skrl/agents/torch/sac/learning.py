"""SAC's updates on our core, over the five modules that the user made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.algorithms.configs import SAC as SACConfig
from offbeat.algorithms.torch import sac
from offbeat.algorithms.torch.batch import Batch
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.networks import OwnSampler, UserCritics, user_name
from offbeat.compat.skrl.agents.sac.settings import CRITICS, GROUPS, TARGETS, Sizes, spec_of, target_entropy
from offbeat.compat.skrl.agents.torch.sac.optimizers import AgentScaler
from offbeat.compat.skrl.agents.torch.sac.sequences import SequenceInputs
from offbeat.learn.learner import Learner
from offbeat.learn.torch import TorchBackend
from offbeat.ranks import place
from offbeat.run.ranked import process_ranks
from offbeat.types import EnvSpec

Preprocess = Callable[..., Any]
"""A preprocessor: called as (x, train=...); x is None where there is no state space."""
Split = Callable[[Tensor, str], dict[str, Any]]
"""A model's inputs, from what an update passes to it and the model's role."""


class Critic(nn.Module):
    """A user's critic as a module of (observations and states, actions): -> (B, 1)."""

    def __init__(self, own: Any, role: str, split: Split) -> None:
        super().__init__()
        self.own, self.role, self._split = own, role, split

    def forward(self, joined: Tensor, action: Tensor) -> Tensor:
        inputs = {**self._split(joined, self.role), "taken_actions": action}
        value: Tensor = self.own.act(inputs, role=self.role)[0]
        return value.to(joined.dtype)


class Policy:
    """`draw` of `OwnSampler`: a user's policy in its own units."""

    def __init__(self, own: Any, split: Split) -> None:
        self._own, self._split = own, split

    def __call__(self, joined: Tensor) -> tuple[Tensor, Tensor]:
        action, outputs = self._own.act(self._split(joined, "policy"), role="policy")
        log_prob: Tensor = outputs["log_prob"]
        if log_prob.numel() != len(log_prob):
            # Not reduced: in the losses, which are means over all numbers, that is the mean over components.
            log_prob = log_prob.mean(-1)
        return action.to(joined.dtype), log_prob.to(joined.dtype)


@dataclass
class TrackedUpdate:
    """Tensors of one update, for tracking: targets y (B,), and the critics' values (2, B) of the policy's actions.

    skipped: optimizer steps that were left out, in mixed precision.
    """

    target: Tensor
    values: Tensor
    entropy_loss: Tensor | None
    skipped: int


class OwnModelsSAC:
    """The functions that `TorchBackend` needs of an algorithm: our SAC, with networks that are a user's modules.

    observations, states: the preprocessors. scaler: of gradients, in mixed precision. sequences: the inputs of
    recurrent models. watch: whether to fill `seen`, for tracking.
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        sizes: Sizes,
        observations: Preprocess,
        states: Preprocess,
        scaler: AgentScaler | None = None,
        sequences: SequenceInputs | None = None,
    ) -> None:
        self._models, self._sizes, self._observations, self._states = models, sizes, observations, states
        self._scaler, self._sequences = scaler, sequences
        self._split: Split = (lambda joined, role: sizes.split(joined)) if sequences is None else sequences.split
        self.watch = False
        self.seen: list[TrackedUpdate] = []
        self._values: list[Tensor] = []  # of the critics, by pass: of the actions taken, of the policy's

    def init(
        self, config: SACConfig, spec: EnvSpec, rng: np.random.Generator, device: torch.device, dtype: torch.dtype
    ) -> sac.SACState:
        """Networks whose parameters are the user's, with the values that they have; targets begin equal to critics."""
        policy = self._models["policy"]
        actor = Network(OwnSampler(policy, Policy(policy, self._split)), user_name, explicit=False)
        for name, target in zip(CRITICS, TARGETS, strict=True):
            pairs = zip(self._models[name].parameters(), self._models[target].parameters(), strict=True)
            for learned, slow in pairs:
                slow.data.copy_(learned.data)
                slow.requires_grad = learned.requires_grad  # so that both flat vectors have the same parts
        critic = Network(self._critics(CRITICS), user_name, explicit=False)
        target_critic = Network(self._critics(TARGETS), user_name, explicit=False)
        target_critic.follow(critic, 1.0)  # buffers, too
        for target in TARGETS:
            self._models[target].requires_grad_(False)
        critic.module.register_forward_hook(self._keep_values)
        if self._scaler is not None:
            for network in (actor, critic, target_critic):
                network.lower_precision(torch.get_autocast_dtype(device.type), self._scaler.scale)
        return sac.new_state(config, actor, critic, target_critic)

    def _critics(self, names: tuple[str, ...]) -> UserCritics:
        return UserCritics([Critic(self._models[name], name, self._split) for name in names])

    def _keep_values(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self.watch:
            self._values.append(output.detach())

    def noise_shape(self, config: SACConfig, spec: EnvSpec) -> tuple[int, ...]:
        """None: policies draw their own."""
        return (2, 0)

    def update(
        self,
        state: sac.SACState,
        config: SACConfig,
        spec: EnvSpec,
        batch: Batch,
        noise: Tensor,
        rates: Mapping[str, float],
        updates: int,
    ) -> tuple[dict[str, Tensor], Tensor]:
        batch = self._prepared(batch)
        log_temperature = state.log_temperature.clone() if self.watch else None
        self._values.clear()
        metrics, errors = sac.update(state, config, spec, batch, noise, rates, updates)
        skipped = 0 if self._scaler is None else self._scaler.finish_update()
        if log_temperature is not None:
            self._track(config, spec, metrics, errors, log_temperature, skipped)
        return metrics, errors

    def _track(
        self,
        config: SACConfig,
        spec: EnvSpec,
        metrics: Mapping[str, Tensor],
        errors: Tensor,
        log_temperature: Tensor,
        skipped: int,
    ) -> None:
        goal = target_entropy(config, spec.action_size)
        entropy_loss = None if goal is None else log_temperature * (metrics["entropy"] - goal)
        taken, drawn = self._values
        self.seen.append(TrackedUpdate(taken[0] - errors[0], drawn, entropy_loss, skipped))

    def _prepared(self, batch: Batch) -> Batch:
        """The batch with preprocessed observations and states side by side."""
        obs, state = self._observations(batch.obs, train=True), self._state(batch.state)
        next_obs, next_state = self._observations(batch.next_obs, train=True), self._state(batch.next_state)
        if state is not None:
            obs, next_obs = torch.cat((obs, state), 1), torch.cat((next_obs, next_state), 1)
        if self._sequences is not None:
            obs, next_obs = self._sequences.pack(obs, next_obs, batch.extras)
        nothing = batch.reward.new_zeros(len(batch), 0)
        return replace(batch, obs=obs, next_obs=next_obs, state=nothing, next_state=nothing)

    def _state(self, state: Tensor) -> Any:
        return self._states(state if self._sizes.state else None, train=True)

    def policy_description(self, config: SACConfig, spec: EnvSpec) -> dict[str, Any]:
        return {"kind": "module", "head": "gaussian", "action_size": spec.action_size}


class ModelsBackend(TorchBackend):
    """`TorchBackend` whose modules draw from torch as the user has seeded it, in updates as in acting."""

    def own_randomness(self, seed: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def make_learner(
    module: OwnModelsSAC, config: SACConfig, sizes: Sizes, device: torch.device, dtype: torch.dtype
) -> Learner:
    """The learner around the user's modules, whose parameters it makes views of flat vectors.

    Under torchrun it is one of several ranks, which begin with the weights of the first and average their gradients.
    """
    spec = spec_of(sizes)
    precision = str(dtype).removeprefix("torch.")
    rng = np.random.default_rng(0)  # draws nothing: the user's modules have their first weights
    backend = ModelsBackend(module, config, spec, rng=rng, device=str(device), precision=precision)
    numbers = np.float64 if dtype == torch.float64 else np.float32
    learner = Learner(config, spec, backend, groups=GROUPS, dtype=numbers)
    if place().size > 1:
        learner.join(process_ranks())
    return learner
