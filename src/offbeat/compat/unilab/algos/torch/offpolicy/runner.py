"""UniLab's runner of off-policy learners (SAC, TD3), over our collectors, replay, runner and checkpoints."""

from __future__ import annotations

import secrets
import shutil
import warnings
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from offbeat import settings as settings_module
from offbeat.compat.unilab.algos.torch.offpolicy.acting import MakeActorPolicy, MakeDeterministic, check_actions
from offbeat.compat.unilab.algos.torch.offpolicy.actors import hidden_sizes
from offbeat.compat.unilab.algos.torch.offpolicy.backend import check_learner
from offbeat.compat.unilab.algos.torch.offpolicy.checks import (
    acting_actor,
    check_algorithm,
    check_kept,
    check_normaliser,
    check_numbers,
    check_threshold,
)
from offbeat.compat.unilab.algos.torch.offpolicy.plan import Following, Plan
from offbeat.compat.unilab.algos.torch.offpolicy.settings import make_algorithm, name_of
from offbeat.compat.unilab.algos.torch.offpolicy.state import cannot_restore
from offbeat.compat.unilab.ipc.async_runner import AsyncRunner
from offbeat.compat.unilab.registry import find_environment
from offbeat.errors import UsageError
from offbeat.replay.uniform import UniformReplay
from offbeat.run.api import RunResult, resume, train_config
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.directory import FILES_OF_A_RUN
from offbeat.run.environments import spec_of
from offbeat.run.lock import RunLock
from offbeat.types import EnvSpec

LOGGERS = {"tensorboard": "tensorboard", "wandb": "wandb", "none": "none"}
ITERATIONS_PER_LOG = 10


def compute_train_start_threshold(batch_size: int, learning_starts: int, num_envs: int) -> int:
    """The number of transitions in replay from which updates are made."""
    return max(int(batch_size), max(int(learning_starts), 0) * max(int(num_envs), 1))


def replay_buffer_ready_for_learning(
    replay_buffer_size: int, *, batch_size: int, learning_starts: int, num_envs: int
) -> bool:
    """Whether replay holds enough transitions for the first update."""
    return int(replay_buffer_size) >= compute_train_start_threshold(batch_size, learning_starts, num_envs)


def build_reward_comparison_metrics(reward_history: deque[float], smoothed_reward: float) -> dict[str, float]:
    """The latest mean return over 100 episodes, as `mean_ep100`; {} without history. smoothed_reward has no effect."""
    return {"mean_ep100": float(reward_history[-1])} if reward_history else {}


class OffPolicyRunner(AsyncRunner):
    """Trains a learner object with `num_envs` environments.

    learner: has actor, update_critic(batch), update_actor(batch), soft_update_target(), update_count and
    get_state_dict(). An iteration is env_steps_per_sync steps of every environment, then updates_per_step updates; the
    actor moves in the first of them and in every policy_frequency-th after it. With sync_collection=False environments
    and updates run side by side, and neither waits. learning_starts: vector steps before the first iteration.
    """

    def __init__(
        self,
        learner: Any,
        env_name: str,
        algo_type: str,
        num_envs: int = 4096,
        replay_buffer_n: int = 1024,
        batch_size: int = 8192,
        learning_starts: int = 0,
        updates_per_step: int = 8,
        policy_frequency: int = 4,
        sync_collection: bool = True,
        env_steps_per_sync: int = 1,
        device: str | None = None,
        actor_hidden_dim: int = 512,
        use_layer_norm: bool = True,
        obs_normalization: bool = False,
        sim_backend: str = "mujoco",
        env_cfg_override: dict[str, Any] | None = None,
        actor_kwargs: dict[str, Any] | None = None,
        seed: int | None = None,
        trace_enabled: bool = False,
        trace_output_dir: str | None = None,
        trace_thread_time: bool = False,
        trace_cuda_events: bool = True,
    ) -> None:
        check_learner(learner)
        check_algorithm(algo_type, learner)
        check_normaliser(learner, obs_normalization)
        check_numbers(
            num_envs=num_envs,
            replay_buffer_n=replay_buffer_n,
            batch_size=batch_size,
            updates_per_step=updates_per_step,
            policy_frequency=policy_frequency,
            env_steps_per_sync=env_steps_per_sync,
        )
        super().__init__(
            env_name, env_cfg_override or {}, {}, device=device, sim_backend=sim_backend, num_envs=num_envs
        )
        self.learner, self.algo_type, self.seed, self.batch_size = learner, algo_type, seed, batch_size
        self.learning_starts, self.capacity = max(int(learning_starts), 0), num_envs * replay_buffer_n
        self.train_start_threshold = compute_train_start_threshold(batch_size, self.learning_starts, num_envs)
        check_threshold(self.train_start_threshold, self.capacity, replay_buffer_n, num_envs)
        self.updates_per_step, self.policy_frequency = updates_per_step, policy_frequency
        self.replay_buffer_n, self.env_steps_per_sync = replay_buffer_n, env_steps_per_sync
        self.sync_collection, self.obs_normalization = sync_collection, obs_normalization
        self.actor_hidden_dim, self.use_layer_norm = actor_hidden_dim, use_layer_norm
        self.trace_enabled, self.trace_output_dir = trace_enabled, trace_output_dir
        self.trace_thread_time, self.trace_cuda_events = trace_thread_time, trace_cuda_events
        self.last_run_summary: dict[str, Any] = {}
        self._plan = Plan(
            num_envs, env_steps_per_sync, updates_per_step, self.train_start_threshold, sync_collection, replay_buffer_n
        )
        self._actor, self._options = self._fit_actor(actor_kwargs or {})

    def _fit_actor(self, actor_kwargs: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
        """The actor that acts and its options, after the sizes of the environment are known and fit."""
        self._env = find_environment(self.env_name, self.sim_backend, self.num_envs)
        self._state_key: str | None = None
        spec = self._find_spec()
        self.obs_dim, self.action_dim = spec.observation_size, spec.action_size
        self.critic_obs_dim = spec.state_size or spec.observation_size
        sizes = self.obs_dim, self.action_dim
        found = acting_actor(
            self.learner, self.algo_type, sizes, self.num_envs, self.actor_hidden_dim, self.use_layer_norm, actor_kwargs
        )
        check_actions(*found, self.num_envs, *sizes)
        return found

    def _find_spec(self) -> EnvSpec:
        """The sizes of the environment; an entry `critic` of a Dict observation is what only critics see."""
        options = {"env_kwargs": self.env_cfg_overrides}
        number = {} if isinstance(self._env, str) else {"keep_num_envs": True}
        spec = spec_of(self._env, **options, **number)
        if any(leaf.path[:1] == ("critic",) for leaf in spec.layout.leaves):
            self._state_key = "critic"
            spec = spec_of(self._env, **options, **number, state_key="critic")
        if spec.choices is not None or spec.branches:
            raise UsageError(
                f"env_name={self.env_name!r} has Discrete or MultiDiscrete actions, but SAC and TD3 act in a Box; use "
                "another environment"
            )
        return spec

    # Training.

    def learn(
        self,
        max_iterations: int = 1500,
        save_interval: int = 50,
        log_dir: str = "logs",
        logger_type: str = "tensorboard",
    ) -> None:
        """Trains up to `max_iterations` iterations in all, in the run `log_dir`/run.

        A run that is there already goes on from its newest checkpoint. Every `save_interval` iterations, and at the
        end, a checkpoint and `model_ITERATION.pt` (`learner.get_state_dict()`) are saved; <= 0 saves at the end only.
        """
        if self.closed:
            raise UsageError("this runner is closed; make a new one")
        check_numbers(max_iterations=max_iterations)
        if logger_type not in LOGGERS:
            raise UsageError(f"logger_type={logger_type!r} is unknown; use {', '.join(LOGGERS)}")
        if missing := cannot_restore(self.learner, self.learner.get_state_dict()):
            warnings.warn(
                f"this run could not be resumed: {type(self.learner).__name__} has no load_state_dict, and no "
                f"attribute for {missing}, which its get_state_dict() returns",
                stacklevel=2,
            )
        directory = Path(log_dir)
        directory.mkdir(parents=True, exist_ok=True)
        following = Following(self._plan, save_interval, build_reward_comparison_metrics)

        def after_iteration(iteration: int) -> None:
            if save_interval > 0 and iteration % save_interval == 0 and iteration < max_iterations:
                self._save_model(directory, iteration)

        record = make_algorithm(self.algo_type, self.learner, self.trace_cuda_events, after_iteration)
        settings = self._settings(max_iterations, logger_type)
        path = directory / "run"
        try:
            result = self._train(record, settings, path, following)
        finally:
            trace = self._copy_trace(path, Path(self.trace_output_dir or log_dir))
        saved = self._save_model(directory, max_iterations)
        self.last_run_summary = {
            "status": "completed",
            "completed_iterations": max_iterations,
            **following.summary(),
            "last_checkpoint": str(saved),
            "trace_path": None if trace is None else str(trace),
            "run": str(result.path),
        }

    def _train(self, record: Any, settings: dict[str, Any], path: Path, following: Following) -> RunResult:
        if path.exists() and Checkpoints(path).names():
            changes = settings if self.seed is None else {**settings, "seed": self.seed}
            finished = self._finished(path, settings)
            changes = {name: changes[name] for name in changes if name not in finished}
            return resume(path, env=self._env, algorithm=record, callbacks=[following], **changes)
        if path.exists():
            _remove_begun(path)
        if self.seed is None:
            self.seed = secrets.randbelow(2**31)
        env = self.env_name if isinstance(self._env, str) else f"<{self.env_name}>"
        settings |= {"env": env, "seed": self.seed, "preset": None, "out": str(path.parent), "name": path.name}
        config = settings_module.make_config(record, settings)
        return train_config(config, env=self._env, callbacks=[following])

    def _finished(self, path: Path, settings: dict[str, Any]) -> tuple[str, ...]:
        """The settings of length, where the run has made all its iterations already, so that they change nothing.

        A runner that the run cannot be resumed with is refused.
        """
        snapshot = Checkpoints(path).load("latest")
        if (trained := snapshot.notes["algorithm"]) != name_of(self.algo_type):
            raise UsageError(
                f"algo_type={self.algo_type!r}, but the run in {path.parent} was trained with "
                f"{trained.removeprefix(name_of(''))!r}; use another log_dir, or a learner of that kind"
            )
        check_kept(self, snapshot.notes["config"], settings["warmup_steps"], path.parent)
        done, total = int(snapshot.values["progress"]["updates"]), int(settings["total_updates"])
        if total < done:
            raise UsageError(
                f"max_iterations={total // self.updates_per_step} is a total, and the run in {path.parent} has made "
                f"{done // self.updates_per_step} iterations already; give a larger one, or another log_dir"
            )
        return ("total_steps", "total_updates") if total == done else ()

    def _settings(self, max_iterations: int, logger_type: str) -> dict[str, Any]:
        """Everything that our run is made of, except what only a new run gets."""
        return {
            **self._plan.settings(max_iterations),
            "env_kwargs": self.env_cfg_overrides,
            "state_key": self._state_key,
            "capacity": self.capacity,
            "batch_size": self.batch_size,
            "replay": UniformReplay,
            "replay_kwargs": {"carry": ["terminated", "truncated"]},
            "hidden": hidden_sizes(self.actor_hidden_dim),
            "actor": MakeDeterministic(self._actor),
            "exploration": MakeActorPolicy(self._actor, self._options, self.num_envs),
            "normalise_observations": self.obs_normalization,
            "updates_per_iteration": self.updates_per_step,
            "policy_frequency": self.policy_frequency,
            "eval_every": 0,
            "eval_episodes": 0,
            "checkpoint_every": 0,
            "log_every": ITERATIONS_PER_LOG * self._plan.group,
            "logger": LOGGERS[logger_type],
            "device": self.device,
            "trace": self.trace_enabled,
            "trace_cpu": self.trace_enabled and self.trace_thread_time,
        }

    def _save_model(self, directory: Path, iteration: int) -> Path:
        path = directory / f"model_{iteration}.pt"
        aside = path.with_suffix(".tmp")
        torch.save(self.learner.get_state_dict(), aside)
        aside.replace(path)
        return path

    def _copy_trace(self, run: Path, directory: Path) -> Path | None:
        """The trace of a run, copied to where it was asked for; None where there is none."""
        if not self.trace_enabled:
            return None
        with suppress(FileNotFoundError):  # a run that was refused has made none
            directory.mkdir(parents=True, exist_ok=True)
            return Path(shutil.copyfile(run / "trace.json", directory / "trace.json"))
        return None


def _remove_begun(path: Path) -> None:
    """Removes a run that was killed before its first checkpoint, and nothing that is not a run's own."""
    if foreign := sorted(each.name for each in path.iterdir() if each.name not in FILES_OF_A_RUN):
        raise UsageError(f"{path} is where the run is saved, but it holds {foreign[0]!r}; use another log_dir")
    lock = RunLock(path)
    lock.take()
    shutil.rmtree(path)
    lock.release()
