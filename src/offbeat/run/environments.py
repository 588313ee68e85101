"""The environments of a run: the ones that it trains on, and others to evaluate on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from offbeat.algorithms.configs import Config
from offbeat.envs import Vector, is_vector_env, make_vector
from offbeat.envs.remarks import remarks
from offbeat.errors import UsageError
from offbeat.run.evaluate import MOST_ENVIRONMENTS
from offbeat.types import EnvSpec


class Environments:
    """Makes the vectors of a run: from its config, or from environments that a config can only name."""

    def __init__(self, config: Config, env: Any, eval_env: Any) -> None:
        self.config = config
        self.env = env if env is not None else config.run.env
        self.eval_env = eval_env
        if self.env == "":
            raise UsageError("env is missing: give a Gymnasium id (--env Pendulum-v1) or module:factory")
        if isinstance(self.env, str) and self.env.startswith("<"):
            raise UsageError(f"the run's environment was {self.env} in Python, which a file cannot hold: pass env=")

    def training(self) -> Vector:
        run = self.config.run
        if is_vector_env(self.env) and self.eval_env is None:
            raise UsageError(
                f"{called(self.env)} is one vector environment and training uses it: pass eval_env= for evaluation, "
                "or a factory that makes the environment instead of the environment itself"
            )
        return self._maker(self.env, "train", run.num_envs, run.seed)()

    def looked_at(self) -> tuple[EnvSpec, EnvSpec, list[str]]:
        """What training and evaluation environments are like, from one of each that is made for this and closed.

        And remarks on the one for training.
        """
        makers = self.part(0, 1), self.evaluation_maker(1, self.config.run.seed)
        with closing(makers[0]()) as training, closing(makers[1]()) as evaluation:
            self._check_shares(training.num_envs)
            return training.spec, evaluation.spec, remarks(training)

    def _check_shares(self, made: int) -> None:
        """A factory of vector environments gives every collector as many as it makes."""
        run = self.config.run
        if made != 1 and run.num_envs != made * run.collectors:
            raise UsageError(
                f"{called(self.env)} makes vector environments of {made}, one for each collector: with collectors="
                f"{run.collectors} use num_envs={made * run.collectors}, not {run.num_envs}"
            )

    def part(self, first_env: int, num_envs: int) -> Callable[[], Vector]:
        """Makes a collector's share of the training environments, in another process."""
        run = self.config.run
        if is_vector_env(self.env):
            raise UsageError(
                f"{called(self.env)} is one vector environment, which collectors cannot share: pass a factory that "
                "makes it, or use collectors=0"
            )
        return self._maker(
            self.env, "train", num_envs, run.seed, first_env=first_env, contain=max(0, run.max_crashes - 1)
        )

    def evaluation(self, episodes: int, seed: int, **options: Any) -> Vector:
        return self.evaluation_maker(episodes, seed, **options)()

    def evaluation_maker(self, episodes: int, seed: int, **options: Any) -> Callable[[], Vector]:
        env = self.env if self.eval_env is None else self.eval_env
        return self._maker(env, "eval", min(episodes, MOST_ENVIRONMENTS), seed, own_number=True, **options)

    def _maker(self, env: Any, purpose: str, num_envs: int, seed: int, **options: Any) -> Callable[[], Vector]:
        run = self.config.run
        return partial(
            make_vector,
            env,
            num_envs,
            seed=seed,
            purpose=purpose,
            env_kwargs=dict(run.env_kwargs),
            env_wrapper=run.env_wrapper,
            max_episode_steps=run.max_episode_steps,
            state_key=run.state_key,
            mask_key=run.mask_key,
            **options,
        )


def called(env: Any) -> str:
    """What to call an environment that is a Python object."""
    return getattr(env, "__qualname__", type(env).__name__)


def spec_of(env: Any, **options: Any) -> EnvSpec:
    """What an environment is like that somebody else steps: one that is made, or an id or a factory."""
    import gymnasium

    single = isinstance(env, gymnasium.Env)
    vector = make_vector((lambda: env) if single else env, **options)
    if isinstance(env, str):
        vector.close()
    if not single:
        return vector.spec
    return dataclasses.replace(vector.spec, name=env.spec.id if env.spec else type(env.unwrapped).__name__)
