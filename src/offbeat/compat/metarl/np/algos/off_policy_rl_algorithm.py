"""The class that off-policy algorithms are subclasses of."""

from __future__ import annotations

import abc
from collections import deque
from typing import Any

import numpy as np

from offbeat.compat.metarl.epoch_row import tabular
from offbeat.compat.metarl.np.algos.checks import check_actions, check_arguments, check_runner
from offbeat.compat.metarl.np.algos.rl_algorithm import RLAlgorithm
from offbeat.compat.metarl.performance import log_performance
from offbeat.compat.metarl.sampler import OffPolicyVectorizedSampler
from offbeat.compat.metarl.sampler.whole_episodes import whole_episodes

SMOOTHED_EPISODES = 100

Paths = list[dict[str, Any]]


class OffPolicyRLAlgorithm(RLAlgorithm):
    """Off-policy learning from a replay buffer: subclass it with `train_once`, and `init_opt` where needed.

    env_spec: the EnvSpec. policy: acts in evaluations. qf: the q-function. replay_buffer: has `add_path` and
    `n_transitions_stored`. use_target: whether targets come from slow copies of the networks. steps_per_epoch: calls of
    `train_once` per epoch. max_path_length: steps after which an episode is truncated. max_eval_path_length: the same
    in evaluations; max_path_length for None. n_train_steps: updates per call of `train_once`. buffer_batch_size:
    transitions per update. min_buffer_size: transitions before the first update. rollout_batch_size: environments that
    are stepped in parallel. reward_scale: multiplies every reward that is learned from. smooth_return: report the mean
    return of the last 100 episodes, and not of this epoch's alone. exploration_policy: acts in training.
    """

    def __init__(
        self,
        env_spec: Any,
        policy: Any,
        qf: Any,
        replay_buffer: Any,
        *,
        use_target: bool = False,
        discount: float = 0.99,
        steps_per_epoch: int = 20,
        max_path_length: int | None = None,
        max_eval_path_length: int | None = None,
        n_train_steps: int = 50,
        buffer_batch_size: int = 64,
        min_buffer_size: int = 10000,
        rollout_batch_size: int = 1,
        reward_scale: float = 1.0,
        smooth_return: bool = True,
        exploration_policy: Any = None,
    ) -> None:
        self.env_spec, self.policy, self.qf, self.replay_buffer = env_spec, policy, qf, replay_buffer
        self.use_target, self.discount, self.steps_per_epoch = use_target, discount, steps_per_epoch
        self.max_path_length, self.max_eval_path_length = max_path_length, max_eval_path_length
        self.n_train_steps, self.buffer_batch_size, self.min_buffer_size = (
            n_train_steps,
            buffer_batch_size,
            min_buffer_size,
        )
        self.rollout_batch_size, self.reward_scale, self.smooth_return = rollout_batch_size, reward_scale, smooth_return
        self.exploration_policy = exploration_policy
        check_arguments(self)
        self.sampler_cls: Any = OffPolicyVectorizedSampler
        self.evaluation_episodes = 0
        self._recent_returns: deque[float] = deque(maxlen=SMOOTHED_EPISODES)
        self._epoch_returns: list[float] = []
        self._epoch = 0
        self.init_opt()
        check_actions(self)

    def init_opt(self) -> None:
        """Called at the end of the constructor, for networks and optimisers."""

    def log_diagnostics(self, paths: Paths) -> None:
        """Lets policy and q-function log what the paths say about them."""
        for part in (self.policy, self.qf):
            if hasattr(part, "log_diagnostics"):
                part.log_diagnostics(paths)

    def process_samples(self, itr: int, paths: Paths) -> dict[str, list[Any]]:
        """What the paths say about their episodes, one entry per path.

        undiscounted_returns: of the episode so far, before reward_scale. success_history: 1.0 if a step of the episode
        was a success, else 0.0. complete: whether the episode is over, by termination or by a time limit.
        """
        return {
            "undiscounted_returns": [path["undiscounted_return"] for path in paths],
            "success_history": [float(path["success_count"] > 0) for path in paths],
            "complete": [bool(path["dones"][-1]) for path in paths],
        }

    def train(self, runner: Any) -> float:
        """Trains over `runner.step_epochs()` and evaluates at the end of each epoch that has learned.

        Returns what the last call of `train_once` returned, or where that is None, the average return.
        """
        check_runner(runner)
        last_return = self._mean_return()
        runner.enable_logging = False
        for _ in runner.step_epochs():
            for _ in range(self.steps_per_epoch):
                runner.step_path = runner.obtain_samples(runner.step_itr)
                for path in runner.step_path:
                    path["rewards"] = path["rewards"] * self.reward_scale
                returned = self.train_once(runner.step_itr, runner.step_path)
                last_return = self._average_return(runner.step_itr, runner.step_path) if returned is None else returned
                runner.step_itr += 1
            if self._buffer_prefilled:
                runner.enable_logging = True
                tabular.record("AverageReturn", last_return)
                log_performance(runner.step_itr, self._obtain_evaluation_samples(runner.get_env_copy()), self.discount)
                tabular.record("Evaluation/TotalTrajs", self.evaluation_episodes)
        return last_return

    @abc.abstractmethod
    def train_once(self, itr: int, paths: Paths) -> Any:
        """One turn of learning, after each batch of paths; the paths are in the replay buffer already.

        Returns the average return, or None.
        """

    def _average_return(self, itr: int, paths: Paths) -> float:
        """Takes in the finished episodes of these paths; the mean of the last 100, or of this epoch's alone."""
        if itr // self.steps_per_epoch != self._epoch:
            self._epoch = itr // self.steps_per_epoch
            self._epoch_returns.clear()
        samples = self.process_samples(itr, paths)
        for total, complete in zip(samples["undiscounted_returns"], samples["complete"], strict=True):
            if complete:
                self._recent_returns.append(float(total))
                self._epoch_returns.append(float(total))
        return self._mean_return()

    def _mean_return(self) -> float:
        counted = self._recent_returns if self.smooth_return else self._epoch_returns
        return float(np.mean(counted)) if counted else float("nan")

    def _obtain_evaluation_samples(self, env: Any, num_trajs: int = 10) -> Paths:
        """Whole episodes of the policy without exploration; the same episodes every time."""
        paths = whole_episodes(self, env, num_trajs, (self.max_eval_path_length, self.max_path_length))
        self.evaluation_episodes += len(paths)
        return paths

    @property
    def _buffer_prefilled(self) -> bool:
        """Whether there are enough transitions to learn from."""
        return bool(self.replay_buffer.n_transitions_stored >= self.min_buffer_size)
