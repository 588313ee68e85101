"""The runner's promises: what is evaluated, logged, kept and refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.vector import SyncVectorEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import offbeat
from offbeat.errors import CheckpointError, EnvironmentFault, SpaceError, UsageError
from offbeat.observe.jsonl import read
from offbeat.run.api import train_config
from offbeat.run.checkpoint import Checkpoints, digest
from offbeat.settings import make_config, read_yaml

SMALL: dict[str, Any] = {
    "hidden": (16, 16),
    "batch_size": 16,
    "random_steps": 60,
    "warmup_steps": 50,
    "capacity": 1_000,
    "total_steps": 300,
    "eval_every": 100,
    "eval_episodes": 3,
    "checkpoint_every": 100,
    "log_every": 50,
    "threads": 1,
    "quiet": True,
    "max_episode_steps": 40,
}


def train(tmp_path: Path, env: Any = "Pendulum-v1", **settings: Any) -> offbeat.run.api.RunResult:  # type: ignore[name-defined]
    return offbeat.train("sac", env, **{**SMALL, "out": str(tmp_path), **settings})


def test_a_run_leaves_the_files_that_people_rely_on(tmp_path: Path) -> None:
    run = train(tmp_path, name="run")
    assert run.path == tmp_path / "run"
    names = {path.name for path in run.path.iterdir() if not path.name.startswith(".")}
    assert names == {
        *("config.yaml", "metrics.jsonl", "evaluations.jsonl", "summary.json", "status.json", "log.txt"),
        *("checkpoints", "replay", "policy", "tensorboard"),
    }
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["status"] == run.status == "finished"
    assert (summary["env_steps"], summary["updates"]) == (300, 250)
    assert summary["updates_per_step"] == 1.0
    assert summary["evaluation"]["mean_return"] == run.evaluation.mean_return
    assert summary["best_evaluation"]["mean_return"] == max(each.mean_return for each in run.history)
    assert summary["train_return_100"] < 0
    assert json.loads((run.path / "status.json").read_text())["pid"] == os.getpid()
    assert [line["step"] for line in read(run.path / "metrics.jsonl")] == [50, 100, 150, 200, 250, 300]
    assert all(len(line["returns"]) == 3 and len(line["lengths"]) == 3 for line in read(run.path / "evaluations.jsonl"))
    board = EventAccumulator(str(run.path / "tensorboard"))
    board.Reload()
    tags = set(board.Tags()["scalars"])
    assert {"rollout/return_100", "rollout/length_100", "train/critic_loss", "time/steps_per_second"} <= tags
    assert {tag for tag in tags if tag.startswith("eval/")} == {"eval/return", "eval/return_std", "eval/length"}
    assert {tag.split("/")[0] for tag in tags} == {"rollout", "train", "eval", "time"}
    assert "_hparams_/session_start_info" in board.PluginTagToContent("hparams")
    assert yaml.safe_load((run.path / "config.yaml").read_text())["versions"]["torch"]


def test_evaluation_plays_the_same_episodes_and_costs_no_training_step(tmp_path: Path) -> None:
    with_evaluation = train(tmp_path / "a", actor_learning_rate=0.0)
    first, *others = with_evaluation.history
    assert [each.step for each in with_evaluation.history] == [100, 200, 300]
    assert all(each.returns == first.returns for each in others)  # the actor never changed
    assert len(set(first.returns)) == 3
    without = train(tmp_path / "b", actor_learning_rate=0.0, eval_every=0, log_every=300)
    assert [each.step for each in without.history] == [300]  # a final evaluation always runs
    assert digest(with_evaluation.path) == digest(without.path)


def test_the_best_checkpoint_is_the_one_with_the_best_evaluation_and_holds_no_replay(tmp_path: Path) -> None:
    run = train(tmp_path, total_steps=600)
    best = max(run.history, key=lambda each: each.mean_return)
    result = offbeat.evaluate(run.path, episodes=3, checkpoint="best")
    np.testing.assert_allclose(result.returns, best.returns, rtol=1e-5)
    final = offbeat.evaluate(run.path, episodes=3)
    np.testing.assert_allclose(final.returns, run.evaluation.returns, rtol=1e-5)
    agent = offbeat.Agent("sac", "Pendulum-v1", **{key: SMALL[key] for key in ("hidden", "capacity")})
    with pytest.raises(CheckpointError, match="no replay"):
        Checkpoints(run.path).load_replay("best", {"0": agent.training.shards["0"]})


def test_the_config_of_a_run_repeats_it(tmp_path: Path) -> None:
    first = train(tmp_path, num_envs=3, seed=5, gamma=0.9)
    mapping = read_yaml(first.path / "config.yaml")
    again = train_config(make_config("sac", mapping))
    assert again.path != first.path
    assert digest(again.path) == digest(first.path)
    assert digest(train(tmp_path, num_envs=3, seed=6, gamma=0.9).path) != digest(first.path)


def test_python_result_has_history_and_a_policy_that_acts(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert run.evaluation is run.history[-1]
    action = run.policy().act(np.zeros(3, np.float32))
    assert action.shape == (1,)
    assert -2.0 <= action[0] <= 2.0


def test_resume_goes_on_to_a_larger_total(tmp_path: Path) -> None:
    long = train(tmp_path, name="long", total_steps=500)
    short = train(tmp_path, name="short")
    resumed = offbeat.resume(short.path, total_steps=500)
    assert digest(resumed.path) == digest(long.path)
    assert [each.step for each in resumed.history] == [100, 200, 300, 400, 500]
    assert yaml.safe_load((short.path / "config.yaml").read_text())["total_steps"] == 500


def test_resume_with_another_environment_or_network_says_what_differs(tmp_path: Path) -> None:
    run = train(tmp_path)
    with pytest.raises(UsageError, match=r"env=InvertedPendulum-v5 cannot change .* \(it is Pendulum-v1\)"):
        offbeat.resume(run.path, total_steps=400, env="InvertedPendulum-v5")
    with pytest.raises(UsageError, match=r"hidden=8 8 cannot change when a run is resumed \(it is 16 16\)"):
        offbeat.resume(run.path, total_steps=400, hidden=(8, 8))
    assert offbeat.resume(run.path, total_steps=310).status == "finished"


class _Broken(gymnasium.Wrapper):
    """Gives NaN after so many steps."""

    def __init__(self, env: gymnasium.Env, good_steps: int) -> None:
        super().__init__(env)
        self.left = good_steps

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self.left -= 1
        return (obs * np.nan if self.left < 0 else obs), *rest


GOOD_STEPS = 150


def breaks() -> gymnasium.Env:
    return _Broken(gymnasium.make("Pendulum-v1"), GOOD_STEPS)


def test_an_environment_that_breaks_is_named_and_leaves_the_last_checkpoint_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnvironmentFault, match=r"nan") as caught:
        train(tmp_path, env=breaks, name="run", eval_every=0)
    assert "episode 3" in str(caught.value)  # 150 good steps of 40 each
    path = tmp_path / "run"
    assert json.loads((path / "summary.json").read_text())["status"] == "failed"
    assert "EnvironmentFault" in (path / "log.txt").read_text()
    Checkpoints(path).verify("latest")
    monkeypatch.setattr("test_runner.GOOD_STEPS", 10**9)  # mended, under the same name
    assert offbeat.resume(path).status == "finished"


def with_switches(env: gymnasium.Env) -> gymnasium.Env:
    """An environment with a kind of action that no off-policy algorithm takes."""
    return gymnasium.wrappers.TransformAction(env, lambda action: 0, gymnasium.spaces.MultiBinary(3))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"env": "CartPole-v1", "env_wrapper": "test_runner:with_switches"}, SpaceError, "MultiBinary.*ppo or appo"),
        ({"env": "Pendulun-v1"}, UsageError, "Pendulum-v1"),
        ({"env": ""}, UsageError, "env"),
        ({"warmup_steps": 2_000}, UsageError, "warmup_steps"),
        ({"device": "teapot"}, UsageError, "teapot"),
        ({"hiden": (8,)}, UsageError, "hidden"),
        ({"actor": "nowhere:actor"}, UsageError, "nowhere"),
        ({"reward_shaping": "nowhere:shape"}, UsageError, "nowhere"),
        ({"env": gymnasium.make("Pendulum-v1")}, UsageError, "pass the function that creates"),
        ({"env": 3}, UsageError, "must be a Gymnasium id"),
        ({"total_steps": 40}, UsageError, "makes no update"),
        ({"device": "mps"}, UsageError, "mps"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_created(
    settings: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        train(tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    train(tmp_path, name="run", total_steps=60)
    before = digest(tmp_path / "run")
    with pytest.raises(UsageError, match="offbeat resume"):
        train(tmp_path, name="run")
    assert digest(tmp_path / "run") == before
    assert train(tmp_path, total_steps=60).path != train(tmp_path, total_steps=60).path


def test_a_vector_environment_trains_and_needs_one_to_evaluate_on(tmp_path: Path) -> None:
    def vector() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=40)] * 4)

    settings = {"max_episode_steps": None}
    with pytest.raises(UsageError, match="eval_env"):
        train(tmp_path, env=vector(), **settings)
    run = train(tmp_path, env=vector(), eval_env=vector(), **settings)
    assert run.status == "finished"
    from_factory = train(tmp_path, env=vector, num_envs=4, **settings)
    assert from_factory.status == "finished"
    with pytest.raises(UsageError, match="pass env="):
        offbeat.resume(run.path)


def test_one_object_for_training_and_evaluation_is_refused(tmp_path: Path) -> None:
    """Evaluation would reset it in the middle of training's episodes, and replay would hold what never happened."""
    env = gymnasium.make("Pendulum-v1")
    vector = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * 2)
    cases: list[tuple[Any, dict[str, Any]]] = [
        (lambda: env, {"eval_episodes": 1}),
        (lambda: vector, {"max_episode_steps": None}),
        (vector, {"max_episode_steps": None, "eval_env": vector}),
    ]
    for shared, settings in cases:
        with pytest.raises(UsageError, match="inside the factory"):
            train(tmp_path / "out", env=shared, **settings)
    assert not (tmp_path / "out").exists()


class _Endless(gymnasium.Wrapper):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = self.env.step(action)
        return obs, reward, np.random.default_rng().random() < 0.1, False, info


class _Truncating(gymnasium.Wrapper):
    def reset(self, **options: Any) -> Any:
        self.count = 0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        self.count += 1
        obs, reward, terminated, _, info = self.env.step(action)
        return obs, reward, terminated, self.count == 20, info


def truncating() -> gymnasium.Env:
    return _Truncating(gymnasium.make("Pendulum-v1").unwrapped)


def endless() -> gymnasium.Env:
    return _Endless(gymnasium.make("Pendulum-v1").unwrapped)


def test_an_environment_without_a_time_limit_gets_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, env=endless, max_episode_steps=None)
    assert "no time limit" in capsys.readouterr().err
    train(tmp_path)
    assert "no time limit" not in capsys.readouterr().err


@pytest.mark.parametrize("collectors", [0, 1])
def test_an_environment_that_truncates_itself_is_not_said_to_have_no_time_limit(
    collectors: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, env=truncating, max_episode_steps=None, collectors=collectors)
    assert "no time limit" not in capsys.readouterr().err


def halved(reward: np.ndarray, step: int, total_steps: int) -> np.ndarray:
    return reward * (0.5 if step < total_steps / 2 else 0.25)


def test_reward_shaping_reaches_replay_but_not_the_returns(tmp_path: Path) -> None:
    shaped, plain = (train(tmp_path, total_steps=100, random_steps=100, reward_shaping=each) for each in (halved, None))
    rewards = []
    for run in (shaped, plain):
        agent = offbeat.Agent("sac", "Pendulum-v1", **{key: SMALL[key] for key in ("hidden", "capacity")})
        Checkpoints(run.path).load_replay("latest", {"0": agent.training.shards["0"]})
        rewards.append(agent.training.shards["0"].read(0, 100).columns["reward"])
    np.testing.assert_allclose(rewards[0], rewards[1] * np.repeat([0.5, 0.25], 50), rtol=1e-6)
    returns = [json.loads((run.path / "summary.json").read_text())["train_return_100"] for run in (shaped, plain)]
    assert returns[0] == returns[1]


def test_random_steps_and_warmup_steps_are_two_settings(tmp_path: Path) -> None:
    run = train(tmp_path, total_steps=120, random_steps=30, warmup_steps=90, log_every=10)
    updates = {line["step"]: line["update"] for line in read(run.path / "metrics.jsonl")}
    assert updates[90] == 0
    assert updates[120] == 30
    later = train(tmp_path, total_steps=120, random_steps=60, warmup_steps=90, log_every=10)
    agents = []
    for each in (run, later):
        agent = offbeat.Agent("sac", "Pendulum-v1", **{key: SMALL[key] for key in ("hidden", "capacity")})
        Checkpoints(each.path).load_replay("latest", {"0": agent.training.shards["0"]})
        agents.append(agent.training.shards["0"].read(0, 120).columns["action"])
    assert np.array_equal(agents[0][:30], agents[1][:30])
    assert not np.array_equal(agents[0][30:60], agents[1][30:60])


def test_total_updates_ends_the_run_where_it_comes_first(tmp_path: Path) -> None:
    run = train(tmp_path, total_updates=25)
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["updates"], summary["env_steps"]) == (25, 75)


def test_a_video_of_the_policy_is_written_where_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    run = train(tmp_path, total_steps=60)
    result = offbeat.evaluate(run.path, episodes=1, video=True)
    assert result.video is not None
    assert result.video.parent == run.path / "videos"
    assert result.video.stat().st_size > 1_000


def test_logger_none_writes_no_tensorboard(tmp_path: Path) -> None:
    assert not (train(tmp_path, total_steps=60, logger=()).path / "tensorboard").exists()
