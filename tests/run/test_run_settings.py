"""What single settings of a run do to what it collects, learns with, writes and prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import offbeat
from offbeat.observe.jsonl import read
from offbeat.policies.mlp import MLPPolicy
from offbeat.run.callbacks import CheckpointEvent, ChunkEvent, UpdateEvent
from offbeat.run.checkpoint import Checkpoints
from short_runs import train
from specs import vector_spec


class Watching:
    """Keeps the columns of every chunk, the steps of every checkpoint, and the agent."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, np.ndarray]] = []
        self.checkpoints: list[int] = []
        self.agent: Any = None

    def on_chunk(self, event: ChunkEvent) -> None:
        self.chunks.append({name: np.array(column) for name, column in event.chunk.columns.items()})

    def on_update(self, event: UpdateEvent) -> None:
        self.agent = event.agent

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self.checkpoints.append(event.step)

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([chunk[name] for chunk in self.chunks])


@pytest.fixture
def watching() -> Watching:
    return Watching()


def test_env_and_env_kwargs_name_what_is_trained_and_evaluated_on(tmp_path: Path, watching: Watching) -> None:
    kwargs = {"length": 2, "ends": "terminated"}
    run = train(tmp_path, env="counting:make", env_kwargs=kwargs, callbacks=[watching])
    assert watching.column("terminated").sum() == 120 / 2
    assert run.evaluation.lengths == (2, 2)
    longer = train(tmp_path, env="counting:make", env_kwargs={**kwargs, "length": 5})
    assert longer.evaluation.lengths == (5, 5)


def brief(env: gymnasium.Env) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(env, 3)


def test_env_wrapper_is_around_every_environment(tmp_path: Path, watching: Watching) -> None:
    run = train(tmp_path, env_wrapper=brief, callbacks=[watching])
    assert watching.column("truncated").sum() == 120 / 3
    assert run.evaluation.lengths == (3, 3)


def test_max_episode_steps_truncates_and_does_not_terminate(tmp_path: Path, watching: Watching) -> None:
    run = train(tmp_path, max_episode_steps=6, callbacks=[watching])
    assert watching.column("truncated").sum() == 120 / 6
    assert watching.column("terminated").sum() == 0
    assert run.evaluation.lengths == (6, 6)


def test_state_key_is_what_the_critic_alone_sees(tmp_path: Path, watching: Watching) -> None:
    kwargs = {"state": "info"}
    run = train(tmp_path, env="counting:make", env_kwargs=kwargs, state_key="state", callbacks=[watching])
    np.testing.assert_array_equal(watching.column("state")[:, 1], watching.column("step"))
    arrays = Checkpoints(run.path).load().arrays
    assert arrays["learner/actor/0/weight"].shape == (2, 8)
    assert arrays["learner/critic/0/weight"].shape == (2, 2 + 3 + 2, 8)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_num_envs_are_stepped_side_by_side(num_envs: int, tmp_path: Path, watching: Watching) -> None:
    train(tmp_path, num_envs=num_envs, callbacks=[watching])
    assert all(chunk["env"].tolist() == [*range(num_envs)] for chunk in watching.chunks)
    assert len(watching.column("env")) == 120


def test_updates_per_step_is_the_ratio_after_the_warm_up(tmp_path: Path) -> None:
    for ratio, updates in ((0.5, 50), (3.0, 300)):
        run = train(tmp_path, updates_per_step=ratio, warmup_steps=20)
        assert json.loads((run.path / "summary.json").read_text())["updates"] == updates


def test_capacity_is_what_replay_keeps(tmp_path: Path, watching: Watching) -> None:
    train(tmp_path, capacity=60, callbacks=[watching])
    assert len(watching.agent.experience) == 60
    train(tmp_path, capacity=500, callbacks=[watching])
    assert len(watching.agent.experience) == 120


@pytest.mark.parametrize("acting", ["numpy", "torch"])
def test_acting_is_what_the_policy_computes_with(acting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acted = []
    act = MLPPolicy.act

    def noted(self: MLPPolicy, *arguments: Any) -> Any:
        acted.append("torch" if self._backend.tanh is torch.tanh else "numpy")
        return act(self, *arguments)

    monkeypatch.setattr(MLPPolicy, "act", noted)
    train(tmp_path, acting=acting)
    assert set(acted) == {acting}


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_gamma_has_the_precision_of_what_learns(precision: str) -> None:
    agent = offbeat.Agent("sac", vector_spec(3, 1), gamma=0.99, precision=precision, hidden=(4,))
    agent.observe(np.zeros(3), np.zeros(1), 1.0, np.zeros(3), False, False)
    batch = agent.experience.draw(np.random.default_rng(0), 1)
    assert set(batch.columns["discount"].flat) == {float(np.dtype(precision).type(0.99))}


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_precision_is_the_dtype_of_what_learns(precision: str, tmp_path: Path) -> None:
    arrays = Checkpoints(train(tmp_path, precision=precision).path).load().arrays
    assert {arrays[f"learner/{name}/0/weight"].dtype.name for name in ("actor", "critic", "target")} == {precision}


def test_log_evaluation_and_checkpoint_each_have_a_rhythm_of_their_own(tmp_path: Path, watching: Watching) -> None:
    rhythm = {"log_every": 30, "eval_every": 50, "eval_episodes": 3, "checkpoint_every": 70}
    run = train(tmp_path, num_envs=10, **rhythm, callbacks=[watching])
    assert [line["step"] for line in read(run.path / "metrics.jsonl")] == [30, 60, 90, 120]
    assert [(each.step, each.episodes) for each in run.history] == [(50, 3), (100, 3), (120, 3)]
    assert watching.checkpoints == [0, 70, 120]


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, quiet=True)
    assert capsys.readouterr().out == ""
    train(tmp_path, quiet=False)
    assert "sac on Pendulum-v1: 20 environments" in capsys.readouterr().out


class Groups:
    """The steps taken before each group of updates, and how many updates it had."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def on_update(self, event: UpdateEvent) -> None:
        self.made.append((event.step, event.count))


def test_updates_are_made_together_after_so_many_vector_steps(tmp_path: Path) -> None:
    each, grouped = Groups(), Groups()
    settings = {"num_envs": 2, "updates_per_step": 0.5, "warmup_steps": 0, "random_steps": 0, "total_steps": 36}
    train(tmp_path, callbacks=[each], **settings)
    train(tmp_path, callbacks=[grouped], update_every=6, **settings)
    assert each.made == [(step, 1) for step in range(2, 38, 2)]
    assert grouped.made == [(12, 6), (24, 6), (36, 6)]


@pytest.mark.parametrize("collectors", [0, 1])
def test_a_run_without_evaluations_makes_none_and_needs_no_evaluation_environment(
    collectors: int, tmp_path: Path
) -> None:
    made = tmp_path / "made"

    def make() -> gymnasium.Env:
        with made.open("a") as file:
            file.write("one\n")
        return gymnasium.make("Pendulum-v1")

    run = train(tmp_path, env=make, collectors=collectors, num_envs=2, total_steps=60, eval_episodes=0)
    assert (run.status, run.evaluation, run.history) == ("finished", None, [])
    assert not (run.path / "evaluations.jsonl").read_text()
    assert len(made.read_text().splitlines()) == 2 + collectors  # with collectors, one is made to look at
    with pytest.raises(offbeat.errors.UsageError, match=r"stop_return=5 .* eval_episodes=0"):
        train(tmp_path, eval_episodes=0, eval_every=10, stop_return=5.0)
