"""Deep deterministic policy gradient as a subclass of OffPolicyRLAlgorithm, over Offbeat's learner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.epoch_row import tabular
from offbeat.compat.metarl.np.algos.checks import check_buffer
from offbeat.compat.metarl.np.algos.off_policy_rl_algorithm import OffPolicyRLAlgorithm, Paths
from offbeat.compat.metarl.torch.algos.clipped_targets import clipped_ddpg
from offbeat.compat.metarl.torch.algos.given_optimiser import Rate, read_optimiser
from offbeat.compat.metarl.torch.algos.learner import check_module, learn, learn_from, make_training, set_optimiser
from offbeat.errors import UsageError
from offbeat.types import EnvSpec, Metrics


class UnitPolicy(nn.Module):
    """The policy with its actions scaled from the environment's bounds to [-1, 1]."""

    centre: Tensor
    half_width: Tensor

    def __init__(self, policy: nn.Module, spec: EnvSpec) -> None:
        super().__init__()
        self.policy = policy
        _add_bounds(self, spec)

    def forward(self, observations: Tensor) -> Tensor:
        action: Tensor = (self.policy(observations) - self.centre) / self.half_width
        return action


class UnitQFunction(nn.Module):
    """The q-function for actions in [-1, 1]."""

    centre: Tensor
    half_width: Tensor

    def __init__(self, qf: nn.Module, spec: EnvSpec) -> None:
        super().__init__()
        self.qf = qf
        _add_bounds(self, spec)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        values: Tensor = self.qf(observations, actions * self.half_width + self.centre)
        return values


def _add_bounds(module: nn.Module, spec: EnvSpec) -> None:
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    module.register_buffer("centre", (low + high) / 2.0, persistent=False)
    module.register_buffer("half_width", (high - low) / 2.0, persistent=False)


class DDPG(OffPolicyRLAlgorithm):
    """Deep deterministic policy gradient. policy: a module from observations (B, O) to actions (B, A) in the
    environment's units; qf: a module from observations and such actions to values (B, 1).

    target_update_tau: share of the learned weights that the target networks take over in each update.
    *_weight_decay: L2 decay of the parameters. *_optimizer: a class of torch.optim or (class, arguments). *_lr:
    learning rates. clip_return: targets are clipped to [-this, this], and with clip_pos_returns to [-this, 0].
    max_action: the target policy's actions are clipped to [-this, this]; to the action space for None. The other
    arguments are those of OffPolicyRLAlgorithm. `policy` and `qf` themselves hold the learned weights.
    """

    def __init__(
        self,
        env_spec: Any,
        policy: Any,
        qf: Any,
        replay_buffer: Any,
        *,
        steps_per_epoch: int = 20,
        n_train_steps: int = 50,
        max_path_length: int | None = None,
        max_eval_path_length: int | None = None,
        buffer_batch_size: int = 64,
        min_buffer_size: int = 10000,
        rollout_batch_size: int = 1,
        exploration_policy: Any = None,
        target_update_tau: float = 0.01,
        discount: float = 0.99,
        policy_weight_decay: float = 0,
        qf_weight_decay: float = 0,
        policy_optimizer: Any = torch.optim.Adam,
        qf_optimizer: Any = torch.optim.Adam,
        policy_lr: float = Rate(1e-4),
        qf_lr: float = Rate(1e-3),
        clip_pos_returns: bool = False,
        clip_return: float = math.inf,
        max_action: Any = None,
        reward_scale: float = 1.0,
        smooth_return: bool = True,
        use_target: bool = True,
    ) -> None:
        if not clip_return > 0:
            raise UsageError(f"clip_return={clip_return} is out of range: it must be above 0")
        self._clip = (-clip_return, 0.0 if clip_pos_returns else clip_return)
        self._tau, self._max_action = target_update_tau, max_action
        self._policy_rate, self._policy_optimiser = read_optimiser(
            "policy_optimizer", policy_optimizer, "policy_lr", policy_lr, policy_weight_decay
        )
        self._qf_rate, self._qf_optimiser = read_optimiser(
            "qf_optimizer", qf_optimizer, "qf_lr", qf_lr, qf_weight_decay
        )
        super().__init__(
            env_spec,
            policy,
            qf,
            replay_buffer,
            use_target=use_target,
            discount=discount,
            steps_per_epoch=steps_per_epoch,
            max_path_length=max_path_length,
            max_eval_path_length=max_eval_path_length,
            n_train_steps=n_train_steps,
            buffer_batch_size=buffer_batch_size,
            min_buffer_size=min_buffer_size,
            rollout_batch_size=rollout_batch_size,
            reward_scale=reward_scale,
            smooth_return=smooth_return,
            exploration_policy=exploration_policy,
        )

    def init_opt(self) -> None:
        """Makes the learner around policy and q-function."""
        check_buffer(self.replay_buffer, "sample_transitions")
        spec = own_spec(self.env_spec)
        if spec.counts:
            raise UsageError(f"env_spec has the action space {self.env_spec.action_space}; DDPG needs a Box")
        if self._max_action is not None:
            limit = tuple(float(each) for each in np.broadcast_to(self._max_action, (spec.action_size,)))
            if min(limit) <= 0:
                raise UsageError(f"max_action={self._max_action} is out of range: it must be above 0")
            spec = dataclasses.replace(spec, action_low=tuple(-each for each in limit), action_high=limit)
        check_module("policy", self.policy, [spec.observation_size], spec.action_size)
        check_module("qf", self.qf, [spec.observation_size, spec.action_size], 1)
        self._training = make_training(
            "ddpg" if self._clip == (-math.inf, math.inf) else clipped_ddpg(*self._clip),
            self,
            spec,
            {
                "actor": lambda _: UnitPolicy(self.policy, spec),
                "critic": lambda _: UnitQFunction(self.qf, spec),
                "actor_learning_rate": self._policy_rate,
                "critic_learning_rate": self._qf_rate,
                "tau": self._tau if self.use_target else 1.0,
            },
        )
        set_optimiser(self._training, "actor", self._policy_optimiser)
        set_optimiser(self._training, "critic", self._qf_optimiser)

    def train_once(self, itr: int, paths: Paths) -> float:
        """`n_train_steps` updates, once there are `min_buffer_size` transitions; returns the average return."""
        if self._buffer_prefilled:
            self._record(learn(self._training, self.n_train_steps))
        return self._average_return(itr, paths)

    def optimize_policy(self, samples_data: Mapping[str, Any]) -> tuple[float, float]:
        """One update with these transitions; returns the losses of q-function and policy."""
        metrics = learn_from(self._training, samples_data)
        return metrics["critic_loss"], metrics["actor_loss"]

    def _record(self, metrics: Metrics) -> None:
        tabular.record("Policy/AveragePolicyLoss", metrics["actor_loss"])
        tabular.record("QFunction/AverageQFunctionLoss", metrics["critic_loss"])
        tabular.record("QFunction/AverageQ", metrics["q"])
