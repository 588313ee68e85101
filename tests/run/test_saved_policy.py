"""Policies of checkpoints, agents and exports: loading, and evaluation on any environment with the same spaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offbeat
from offbeat.errors import CheckpointError, UsageError
from offbeat.run.api import RunResult
from offbeat.run.checkpoint import Checkpoints
from short_runs import train

OBS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "random_steps": 5, "warmup_steps": 5, "capacity": 100}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run whose best checkpoint is not its last, and which has all of them."""
    out = tmp_path_factory.mktemp("runs")
    learning = {"actor_learning_rate": 0.05, "normalise_observations": True, "observation_clip": 2.0}
    found: RunResult = train(out, name="run", keep_checkpoints=None, eval_every=20, checkpoint_every=20, **learning)
    assert found.history[-1].mean_return < max(each.mean_return for each in found.history)
    return found


def test_the_latest_the_best_and_any_other_checkpoint_can_be_loaded(run: RunResult) -> None:
    best = max(run.history, key=lambda each: each.mean_return)
    latest, loaded = run.policy(), run.policy("best")
    assert (latest.version, loaded.version) == (run.history[-1].version, best.version)
    assert (loaded.notes["step"], loaded.notes["env"], loaded.notes["algorithm"]) == (best.step, "Pendulum-v1", "sac")
    assert not np.allclose(latest.act(OBS), loaded.act(OBS))
    name = next(name for name in Checkpoints(run.path).names() if int(name.split("-")[1]) == best.step)
    np.testing.assert_array_equal(offbeat.load_policy(run.path, checkpoint=name).act(OBS), loaded.act(OBS))
    (newest,) = [name for name in Checkpoints(run.path).names() if name == "step-000000000120"]
    np.testing.assert_array_equal(offbeat.load_policy(run.path, newest).act(OBS), latest.act(OBS))


def test_the_best_policy_is_loaded_without_torch(run: RunResult) -> None:
    code = f"import offbeat, sys; offbeat.load_policy({str(run.path)!r}, 'best'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_checkpoint_that_is_not_there_is_named(run: RunResult, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint step-000000000007"):
        run.policy("step-000000000007")
    with pytest.raises(
        CheckpointError, match=r"'newest' is not a checkpoint name; \S+ has latest, best, step-\S+, \S+, [^`]+$"
    ):
        run.policy("newest")
    with pytest.raises(CheckpointError, match="holds no checkpoints, so there is no 'best'; pass a run's"):
        offbeat.load_policy(run.path / "policy", "best")


def test_what_an_agent_saved_can_be_loaded_and_evaluated(tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1", max_episode_steps=10)
    agent = offbeat.Agent("sac", env, normalise_observations=True, **SMALL)
    obs, _ = env.reset(seed=0)
    for _ in range(9):
        action = agent.act(obs)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.observe(obs, action, reward, following, terminated, truncated)
        agent.update()
        obs = following
    agent.save(tmp_path)
    policy = offbeat.load_policy(tmp_path)
    np.testing.assert_allclose(policy.act(OBS), agent.act(OBS, deterministic=True), atol=1e-6)
    found = [offbeat.evaluate(each, episodes=2, max_episode_steps=10) for each in (tmp_path, policy, agent)]
    assert found[0].lengths == (10, 10)
    assert found[0].returns == pytest.approx(found[1].returns, rel=1e-5)
    assert found[1].returns == pytest.approx(found[2].returns, rel=1e-5)
    assert {(each.step, each.version) for each in found} == {(9, 4)} == {(agent.steps, agent.learner.updates)}


def test_an_agent_is_evaluated_with_its_own_seed(tmp_path: Path) -> None:
    agent = offbeat.Agent("sac", "Pendulum-v1", **{**SMALL, "seed": 5})
    agent.save(tmp_path)
    found = [offbeat.evaluate(each, episodes=2, max_episode_steps=5) for each in (agent, tmp_path)]
    assert found[0].returns == pytest.approx(found[1].returns, rel=1e-5)


def test_a_run_is_evaluated_as_it_was_during_training(run: RunResult) -> None:
    best = max(run.history, key=lambda each: each.mean_return)
    found = offbeat.evaluate(run, checkpoint="best", episodes=2)
    assert (found.step, found.version, found.returns) == (best.step, best.version, best.returns)
    assert offbeat.evaluate(run.path, episodes=2).returns == run.history[-1].returns
    assert offbeat.evaluate(run, episodes=2, seed=5).returns != run.history[-1].returns


class Slanted(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, reward, *others = self.env.step(action)
        return obs, float(reward) - 100.0, *others


def test_a_policy_is_evaluated_on_another_environment_with_the_same_spaces(run: RunResult) -> None:
    own = offbeat.evaluate(run, episodes=2)
    lighter = offbeat.evaluate(run, episodes=2, env_kwargs={"g": 1.0})
    assert lighter.lengths == own.lengths == (10, 10)
    assert lighter.returns != own.returns
    assert offbeat.evaluate(run, episodes=2, max_episode_steps=4).lengths == (4, 4)
    wrapped = offbeat.evaluate(run, episodes=2, env_wrapper=Slanted)
    assert wrapped.returns == pytest.approx([each - 1_000 for each in own.returns])
    factory = offbeat.evaluate(run, lambda: gymnasium.make("Pendulum-v1", g=1.0), episodes=2)
    assert factory.returns == lighter.returns
    assert offbeat.evaluate(run.policy(), "Pendulum-v1", episodes=2, max_episode_steps=4).lengths == (4, 4)


def test_env_kwargs_of_the_run_are_laid_over_and_not_given_to_another_environment(tmp_path: Path) -> None:
    run = train(tmp_path, env_kwargs={"g": 1.0})
    light = offbeat.evaluate(run, episodes=2)
    assert light.returns == run.history[-1].returns
    assert offbeat.evaluate(run, episodes=2, env_kwargs={"g": 1.0, "render_mode": None}).returns == light.returns
    heavy = offbeat.evaluate(run, episodes=2, env_kwargs={})
    assert heavy.returns != light.returns
    assert offbeat.evaluate(run, "gymnasium:Pendulum-v1", episodes=2).returns == heavy.returns


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("run", {"env": "MountainCarContinuous-v0"}, r"MountainCarContinuous-v0 does not have the .* box \(3,\) there"),
        (
            "policy",
            {"env": "CartPole-v1"},
            "CartPole-v1 does not have the observation and action spaces of Pend",
        ),
        ("policy", {"checkpoint": "best"}, "checkpoint and video need a run's directory"),
        (print, {}, "cannot be evaluated; pass a run"),
        ("run", {"episodes": 0}, "episodes=0 is out of range"),
        ("run", {"epsiodes": 3}, "evaluate has no argument 'epsiodes'; did you mean episodes"),
        ("policy", {"n_eval_episodes": 3}, "evaluate has no argument 'n_eval_episodes'; did you mean episodes"),
        ("run", {"hidden": [3]}, "evaluate has no argument 'hidden'; it takes episodes, checkpoint"),
        ("policy", {"actor": print}, "evaluate has no argument 'actor'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(policy: Any, options: dict[str, Any], words: str, run: RunResult) -> None:
    given = {"run": run, "policy": run.policy()}.get(policy, policy) if isinstance(policy, str) else policy
    with pytest.raises(UsageError, match=words):
        offbeat.evaluate(given, **options)
