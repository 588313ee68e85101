"""The training and evaluation environments of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from offbeat.algorithms.configs import Config
from offbeat.envs import Vector, is_vector_env, make_vector
from offbeat.envs.environment_notes import environment_notes
from offbeat.errors import UsageError
from offbeat.run.evaluation import MAX_EVALUATION_ENVS
from offbeat.types import EnvSpec


class Environments:
    """Makes the vector environments of a run, from its config or from Python objects that a config cannot hold."""

    def __init__(self, config: Config, env: Any, eval_env: Any) -> None:
        self.config = config
        self.env = env if env is not None else config.run.environment.env
        self.eval_env = eval_env
        if self.env == "":
            raise UsageError("env is missing: pass a Gymnasium id (--env Pendulum-v1) or module:factory")
        if isinstance(self.env, str) and self.env.startswith("<"):
            raise UsageError(
                f"the run's environment was the Python object {self.env}, which config.yaml cannot hold: pass env="
            )

    def training(self) -> Vector:
        run = self.config.run
        if is_vector_env(self.env) and self.eval_env is None and run.evaluation.eval_episodes:
            raise UsageError(
                f"{display_name(self.env)} is one vector environment, which training uses: pass eval_env= for "
                "evaluation, or a factory that makes the environment"
            )
        return self._maker(self.env, "train", run.environment.num_envs, run.start.seed)()

    def probe_specs(self) -> tuple[EnvSpec, EnvSpec, list[str]]:
        """Specs of a training and an evaluation environment, and remarks on the former; both are made and closed."""
        with closing(self.collector_maker(0, 1)()) as training:
            self._check_shares(training.num_envs)
            if not self.config.run.evaluation.eval_episodes:
                return training.spec, training.spec, environment_notes(training)
            with closing(self.evaluation(1, self.config.run.start.seed)) as evaluation:
                return training.spec, evaluation.spec, environment_notes(training)

    def _check_shares(self, made: int) -> None:
        """Checks num_envs for a factory of vector environments, which each collector calls once."""
        run = self.config.run
        num_envs, collectors = run.environment.num_envs, max(1, run.collection.collectors)
        if made != 1 and num_envs != made * collectors:
            raise UsageError(
                f"num_envs={num_envs} does not fit collectors={collectors}: each collector makes one "
                f"{display_name(self.env)} of {made} environments; use num_envs={made * collectors}"
            )

    def collector_maker(self, first_env: int, num_envs: int) -> Callable[[], Vector]:
        """Returns a function that makes a collector's share of the training environments, for the collector to call."""
        run = self.config.run
        if is_vector_env(self.env):
            raise UsageError(
                f"{display_name(self.env)} is one vector environment, which collectors cannot share: pass a factory "
                "that makes it, or use collectors=0"
            )
        return self._maker(
            self.env,
            "train",
            num_envs,
            run.start.seed,
            first_env=first_env,
            max_faults=max(0, run.collection.max_crashes - 1),
        )

    def evaluation(self, episodes: int, seed: int, **options: Any) -> Vector:
        return self.evaluation_maker(episodes, seed, **options)()

    def evaluation_maker(self, episodes: int, seed: int, **options: Any) -> Callable[[], Vector]:
        env = self.env if self.eval_env is None else self.eval_env
        return self._maker(env, "eval", min(episodes, MAX_EVALUATION_ENVS), seed, keep_num_envs=True, **options)

    def _maker(self, env: Any, purpose: str, num_envs: int, seed: int, **options: Any) -> Callable[[], Vector]:
        run = self.config.run
        return partial(
            make_vector,
            env,
            num_envs,
            seed=seed,
            purpose=purpose,
            env_kwargs=dict(run.environment.env_kwargs),
            env_wrapper=run.environment.env_wrapper,
            max_episode_steps=run.environment.max_episode_steps,
            state_key=run.environment.state_key,
            mask_key=run.environment.mask_key,
            **options,
        )


def display_name(env: Any) -> str:
    """The name of an environment that is a Python object, for errors and files."""
    return getattr(env, "__qualname__", type(env).__name__)


def spec_of(env: Any, **options: Any) -> EnvSpec:
    """The spec of an environment that the user steps: an environment object, an id or a factory."""
    import gymnasium

    single = isinstance(env, gymnasium.Env)
    vector = make_vector((lambda: env) if single else env, **options)
    if isinstance(env, str):
        vector.close()
    if not single:
        return vector.spec
    return dataclasses.replace(vector.spec, name=env.spec.id if env.spec else type(env.unwrapped).__name__)
