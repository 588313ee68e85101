"""Deep Q-learning as a subclass of OffPolicyRLAlgorithm, over Offbeat's learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.epoch_row import tabular
from offbeat.compat.metarl.np.algos.checks import check_buffer
from offbeat.compat.metarl.np.algos.off_policy_rl_algorithm import OffPolicyRLAlgorithm, Paths
from offbeat.compat.metarl.torch.algos.given_optimiser import Rate, read_optimiser
from offbeat.compat.metarl.torch.algos.learner import check_module, learn, learn_from, make_training, set_optimiser
from offbeat.errors import UsageError
from offbeat.types import Metrics


class DQN(OffPolicyRLAlgorithm):
    """Deep Q-network with Huber's loss. qf: a module from observations (B, O) to the values (B, actions).

    qf_lr, qf_optimizer: learning rate, and a class of torch.optim or (class, arguments). target_network_update_freq:
    the target network becomes the learned one once per so many learning calls of `train_once`. grad_norm_clipping:
    gradients are scaled down to this norm. double_q: the learned network chooses the next action, and the target
    network values it. The other arguments are those of OffPolicyRLAlgorithm. `qf` itself holds the learned weights.
    """

    def __init__(
        self,
        env_spec: Any,
        policy: Any,
        qf: Any,
        replay_buffer: Any,
        exploration_policy: Any = None,
        steps_per_epoch: int = 20,
        min_buffer_size: int = 10000,
        buffer_batch_size: int = 64,
        rollout_batch_size: int = 1,
        n_train_steps: int = 50,
        max_path_length: int | None = None,
        qf_lr: float = Rate(0.001),
        qf_optimizer: Any = torch.optim.Adam,
        discount: float = 1.0,
        target_network_update_freq: int = 5,
        grad_norm_clipping: float | None = None,
        double_q: bool = False,
        reward_scale: float = 1.0,
        smooth_return: bool = True,
        name: str = "DQN",
        *,
        use_target: bool = True,
        max_eval_path_length: int | None = None,
    ) -> None:
        if target_network_update_freq < 1:
            raise UsageError(f"target_network_update_freq={target_network_update_freq} is out of range: at least 1")
        self._rate, self._optimiser = read_optimiser("qf_optimizer", qf_optimizer, "qf_lr", qf_lr)
        self._target_freq, self._max_norm = target_network_update_freq, grad_norm_clipping
        self._double_q, self._name = double_q, name
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
        """Makes the learner around the q-function."""
        check_buffer(self.replay_buffer, "sample_transitions")
        spec = own_spec(self.env_spec)
        if spec.choices is None:
            raise UsageError(f"env_spec has the action space {self.env_spec.action_space}; DQN needs Discrete actions")
        check_module("qf", self.qf, [spec.observation_size], spec.choices)
        every = self._target_freq * self.n_train_steps if self.use_target else 1
        self._training = make_training(
            "dqn",
            self,
            spec,
            {
                "critic": lambda _: self.qf,
                "learning_rate": self._rate,
                "double_q": self._double_q,
                "tau": 1.0,
                "target_every": every,
                "max_grad_norm": self._max_norm,
            },
        )
        set_optimiser(self._training, "critic", self._optimiser)

    def train_once(self, itr: int, paths: Paths) -> float:
        """`n_train_steps` updates, once there are `min_buffer_size` transitions; returns the average return."""
        if self._buffer_prefilled:
            self._record(learn(self._training, self.n_train_steps))
        return self._average_return(itr, paths)

    def optimize_policy(self, samples_data: Mapping[str, Any] | None) -> float:
        """One update with these transitions, or with sampled ones for None; returns the loss."""
        samples = (
            self.replay_buffer.sample_transitions(self.buffer_batch_size) if samples_data is None else samples_data
        )
        return learn_from(self._training, samples)["loss"]

    def _record(self, metrics: Metrics) -> None:
        tabular.record(f"{self._name}/QFunctionLoss", metrics["loss"])
        tabular.record(f"{self._name}/AverageQ", metrics["q"])
