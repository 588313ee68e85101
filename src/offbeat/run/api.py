"""From Python: train, resume, evaluate. The commands call these."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from offbeat import settings as settings_module
from offbeat.algorithms.configs import Config
from offbeat.collect.inline import Inline
from offbeat.deploy import LoadedPolicy, load_policy
from offbeat.envs import Vector, make_vector
from offbeat.errors import OffbeatError, UsageError
from offbeat.observe.console import Console
from offbeat.policies import make_policy
from offbeat.references import name_of, resolve
from offbeat.run.agent import Agent, check_same, under
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.directory import RunDirectory
from offbeat.run.evaluate import MOST_ENVIRONMENTS, Evaluation, evaluate, record
from offbeat.run.runner import Runner
from offbeat.run.stop import Stop
from offbeat.run.versions import versions


@dataclass(frozen=True)
class RunResult:
    """A run that has ended. evaluation: the final one (None when stopped before any). history: all, in order."""

    path: Path
    status: str
    evaluation: Evaluation | None
    history: list[Evaluation] = field(default_factory=list)

    def policy(self, **options: Any) -> LoadedPolicy:
        return load_policy(self.path, **options)


@dataclass(frozen=True)
class EvaluationOfRun:
    """Returns and lengths of each episode, and the video if one was asked for."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    video: Path | None = None


def train(algorithm: str, env: Any, *, eval_env: Any = None, **settings: Any) -> RunResult:
    """Trains `algorithm` on `env`: a Gymnasium id, module:factory, a factory, or a vector environment.

    settings: any of docs/settings.md, by name. eval_env: where to evaluate, by default another environment like `env`.
    """
    name = env if isinstance(env, str) else (name_of(env) if callable(env) else None) or f"<{_called(env)}>"
    config = settings_module.build(algorithm, {**settings, "env": name})
    return train_config(config, env=env, eval_env=eval_env)


def train_config(config: Config, *, env: Any = None, eval_env: Any = None) -> RunResult:
    """Trains what a config says; `env` stands in where the config can only name a Python object."""
    parts = _Parts(config, env, eval_env)
    with _threads(config.run.threads):
        agent, collector = parts.build()
        directory = RunDirectory.create(config, versions())
        directory.lock()
        try:
            return _train(parts, agent, collector, directory, None)
        finally:
            directory.unlock()


def resume(
    path: str | Path,
    *,
    total_steps: int | None = None,
    total_updates: int | None = None,
    checkpoint: str = "latest",
    quiet: bool | None = None,
    env: Any = None,
    eval_env: Any = None,
    **callables: Any,
) -> RunResult:
    """Goes on with a run from a checkpoint. total_steps and total_updates are totals, not additions.

    env, eval_env and further callables (actor, critic, reward_shaping, ...) replace what a file could not hold.
    """
    directory = RunDirectory.open(path)
    directory.lock()
    try:
        notes = Checkpoints(directory.path).load(checkpoint).notes
        changes = {"total_steps": total_steps, "total_updates": total_updates, "quiet": quiet}
        given = {key: value for key, value in {**changes, **callables}.items() if value is not None}
        config = settings_module.build(notes["algorithm"], {**notes["config"], **given})
        if env is not None:
            config = settings_module.with_changes(config, env=env if isinstance(env, str) else config.run.env)
        parts = _Parts(config, env, eval_env)
        with _threads(config.run.threads):
            agent, collector = parts.build()
            check_same(notes, config.algorithm, agent.spec)
            text = settings_module.write_yaml(config, versions())
            (directory.path / "config.yaml").write_text(text)
            return _train(parts, agent, collector, directory, checkpoint)
    finally:
        directory.unlock()


def evaluate_run(
    path: str | Path,
    *,
    episodes: int = 20,
    checkpoint: str = "latest",
    seed: int | None = None,
    video: bool = False,
    env: Any = None,
    **callables: Any,
) -> EvaluationOfRun:
    """Plays a run's policy, deterministically, on evaluation episodes; `video` records one and says where it is.

    env and further callables (actor, env_wrapper) replace what a file could not hold.
    """
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is out of range: it must be at least 1")
    directory = RunDirectory.open(path)
    snapshot = Checkpoints(directory.path).load(checkpoint)
    notes = snapshot.notes
    config = settings_module.build(notes["algorithm"], {**_without_training_code(notes["config"]), **callables})
    parts = _Parts(config, env, None)
    seed = config.run.seed if seed is None else seed
    vector = parts.vector("eval", min(episodes, MOST_ENVIRONMENTS), seed=seed, evaluation=True)
    check_same(notes, config.algorithm, vector.spec)
    own = getattr(config.learner, "actor", None)
    policy = make_policy(
        notes["policy"], num_envs=vector.num_envs, spec=vector.spec, actor=resolve(own, "actor") if own else None
    )
    policy.load(_acting_weights(snapshot.arrays, config))
    try:
        results = evaluate(vector, policy, episodes)
        assert results is not None  # only a wish to stop gives None
    finally:
        vector.close()
    if not video:
        return EvaluationOfRun(*results)
    return EvaluationOfRun(*results, video=_video(parts, directory, policy, snapshot.values["steps"], seed))


def _without_training_code(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the callables that only training needs, which a file may have been unable to hold."""
    only_training = {"reward_shaping", "critic", "actor_schedule", "critic_schedule", "temperature_schedule"}
    return {key: value for key, value in settings.items() if key not in only_training}


def _acting_weights(arrays: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The acting weights inside a checkpoint, without building a learner."""
    import numpy as np

    learner = under(arrays, "learner/")
    weights = {
        name: array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in learner.items()
        if name.startswith("actor/")
    }
    if "observations/mean" in learner:
        from offbeat.learn.statistics import RunningMoments

        moments = RunningMoments(len(learner["observations/mean"]))
        moments.restore(under(learner, "observations/"))
        weights["normaliser/mean"] = moments.mean.astype(np.float32)
        weights["normaliser/scale"] = moments.scale.astype(np.float32)
        weights["normaliser/clip"] = np.asarray(config.learner.observation_clip, np.float32)
    return weights


def _video(parts: _Parts, directory: RunDirectory, policy: Any, step: int, seed: int) -> Path:
    from offbeat.observe.video import write_video

    vector = parts.vector("eval", 1, seed=seed, evaluation=True, render_mode="rgb_array")
    try:
        frames = record(vector, policy)
    finally:
        vector.close()
    if not frames:
        raise OffbeatError(f"{vector.spec.name} rendered no frame: it needs render_mode='rgb_array' for a video")
    return write_video(frames, directory.path / "videos" / f"step-{step}", fps=30)


class _Parts:
    """What a run is assembled from: its config and the environments that a config can only name."""

    def __init__(self, config: Config, env: Any, eval_env: Any) -> None:
        self.config = config
        self.env = env if env is not None else config.run.env
        self.eval_env = eval_env
        if not self.env:
            raise UsageError("env is missing: give a Gymnasium id (--env Pendulum-v1) or module:factory")
        if isinstance(self.env, str) and self.env.startswith("<"):
            raise UsageError(f"the run's environment was {self.env} in Python, which a file cannot hold: pass env=")

    def vector(self, purpose: str, num_envs: int, *, seed: int, evaluation: bool = False, **options: Any) -> Vector:
        run = self.config.run
        env = self.eval_env if evaluation and self.eval_env is not None else self.env
        if evaluation and self.eval_env is None and not isinstance(env, str) and not callable(env):
            raise UsageError(
                f"{_called(env)} is one vector environment and training uses it: pass eval_env= for evaluation, "
                "or a factory that makes the environment instead of the environment itself"
            )
        return make_vector(
            env,
            num_envs,
            seed=seed,
            purpose=purpose,
            env_kwargs=dict(run.env_kwargs),
            env_wrapper=run.env_wrapper,
            max_episode_steps=run.max_episode_steps,
            state_key=run.state_key,
            own_number=evaluation,
            **options,
        )

    def evaluation_vector(self) -> Vector:
        run = self.config.run
        return self.vector("eval", min(run.eval_episodes, MOST_ENVIRONMENTS), seed=run.seed, evaluation=True)

    def build(self) -> tuple[Agent, Inline]:
        """Agent and collector, before anything is written: whatever does not fit is refused here."""
        run = self.config.run
        if not isinstance(self.env, str) and not callable(self.env) and self.eval_env is None:
            self.evaluation_vector()  # refuses
        shaping = None if run.reward_shaping is None else resolve(run.reward_shaping, "reward_shaping")
        vector = self.vector("train", run.num_envs, seed=run.seed)
        agent = Agent.from_config(self.config, vector.spec)
        collector = Inline(
            vector,
            agent.policy(vector.num_envs),
            agent.schema,
            agent.streams.acting,
            random_steps=run.random_steps,
            reward_shaping=shaping,
            total_steps=run.total_steps,
        )
        return agent, collector


def _train(
    parts: _Parts, agent: Agent, collector: Inline, directory: RunDirectory, checkpoint: str | None
) -> RunResult:
    """Trains in a directory that this process has locked, from its checkpoint if one is named."""
    run = parts.config.run
    with (
        Stop() as stop,
        Console(directory.path, run.total_steps, run.total_updates, run.quiet) as console,
        closing(Runner(agent, collector, parts.evaluation_vector, directory, console, stop)) as runner,
    ):
        try:
            console.start(_introduction(parts.config, agent, directory))
            if checkpoint is not None:
                runner.resume(checkpoint)
            status = runner.train()
        except BaseException:
            directory.log("failed\n" + traceback.format_exc())
            runner.fail()
            raise
        result = RunResult(directory.path, status, runner.history[-1] if runner.history else None, runner.history)
        console.finish(_conclusion(result, runner))
        return result


def _introduction(config: Config, agent: Agent, directory: RunDirectory) -> list[str]:
    run = config.run
    return [
        f"{config.algorithm} on {run.env}: {run.num_envs} environment(s), {run.total_steps:,} steps, seed {run.seed}, "
        f"{agent.learner.device}, {torch.get_num_threads()} thread(s)",
        f"files: {directory.path}",
    ]


def _conclusion(result: RunResult, runner: Runner) -> list[str]:
    progress, lines = runner.progress, []
    lines.append(
        f"{result.status} at step {progress.step:,} after {progress.updates:,} updates, {progress.wall_seconds:.0f} s"
    )
    if result.evaluation is not None:
        last = result.evaluation
        lines.append(
            f"evaluation at step {last.step:,}: {last.mean_return:.1f} (std {last.std_return:.1f}) "
            f"over {last.episodes} episodes"
        )
    if result.status == "stopped":
        lines.append(f"go on with: offbeat resume {result.path}")
    return lines


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Torch's threads for the time of a run; 0 leaves them."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _called(env: Any) -> str:
    return getattr(env, "__qualname__", type(env).__name__)
