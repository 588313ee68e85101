"""What callbacks and `Agent` may ask for: a number in every logger, a checkpoint now, another learning rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import offbeat
from offbeat.errors import CallbackFault, UsageError
from offbeat.observe.jsonl import read
from offbeat.run.callbacks import ChunkEvent, EvaluationEvent
from offbeat.run.checkpoint import Checkpoints, digest
from short_runs import train

SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "random_steps": 5, "warmup_steps": 5, "capacity": 100}


class Asking:
    """Calls `ask(event)` at these steps, once each."""

    def __init__(self, ask: Any, *steps: int) -> None:
        self.ask, self.steps = ask, list(steps)

    def on_chunk(self, event: ChunkEvent) -> None:
        if event.step in self.steps:
            self.steps.remove(event.step)
            self.ask(event)


def test_a_number_of_ones_own_is_in_the_next_line_and_in_every_logger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(event: ChunkEvent) -> None:
        event.run.log("height", event.step)
        event.run.log("arm/angle", event.step / 10)

    run = train(tmp_path, callbacks=[Asking(ask, 20, 40, 80)], logger=("tensorboard",), quiet=False)
    lines = [line for line in read(run.path / "metrics.jsonl") if "height" in line]
    assert [(line["step"], line["height"], line["arm/angle"]) for line in lines] == [(40, 40.0, 4.0), (100, 80.0, 8.0)]
    board = EventAccumulator(str(run.path / "tensorboard"))
    board.Reload()
    assert [(each.step, each.value) for each in board.Scalars("own/height")] == [(40, 40.0), (100, 80.0)]
    assert len(board.Scalars("arm/angle")) == 2
    assert "| height 40 | arm/angle 4 |" in capsys.readouterr().out


def test_a_number_that_is_logged_at_the_end_is_not_lost(tmp_path: Path) -> None:
    class Scorer:
        def on_evaluation(self, event: EvaluationEvent) -> None:
            event.run.log("score", event.evaluation.mean_return)

    run = train(tmp_path, callbacks=[Scorer()])
    scores = [line["score"] for line in read(run.path / "metrics.jsonl") if "score" in line]
    assert scores[-1] == run.history[-1].mean_return


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("return_100", 1.0, "log: 'return_100' is a number that the run logs itself; use another name, like 'own/re"),
        ("step", 1.0, "log: 'step' is a number that the run logs itself"),
        ("", 1.0, "name='' must be text"),
        ("text", "high", "log: text='high' is not a number"),
    ],
)
def test_a_number_that_cannot_be_logged_is_refused_in_words(name: str, value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises((CallbackFault, UsageError)) as caught:
        train(tmp_path, callbacks=[Asking(lambda event: event.run.log(name, value), 20)])
    assert words in str(caught.value)


def steps_kept(path: Path) -> list[int]:
    return [int(name.split("-")[1]) for name in Checkpoints(path).names() if name.startswith("step")]


def test_a_checkpoint_that_is_asked_for_is_made_before_the_next_step_and_changes_nothing(tmp_path: Path) -> None:
    plain = train(tmp_path, name="plain")
    asking = Asking(lambda event: event.run.save_checkpoint(), 40, 80)
    run = train(tmp_path, name="asked", callbacks=[asking], keep_checkpoints=None)
    assert steps_kept(run.path) == [0, 40, 60, 80, 100, 120]
    assert digest(run.path) == digest(plain.path)


def test_keep_checkpoints_is_how_many_of_the_newest_stay(tmp_path: Path) -> None:
    assert steps_kept(train(tmp_path, name="two").path) == [100, 120]
    assert steps_kept(train(tmp_path, name="three", keep_checkpoints=3).path) == [60, 100, 120]
    one = train(tmp_path, name="one", keep_checkpoints=1)
    assert steps_kept(one.path) == [120]
    assert Checkpoints(one.path).load("best").values["progress"]["step"] in (40, 80, 120)
    offbeat.resume(one.path, total_steps=200)
    assert steps_kept(one.path) == [200]


def rates(path: Path, group: str) -> dict[int, float]:
    return {line["step"]: line[f"{group}_rate"] for line in read(path / "metrics.jsonl")}


def test_a_learning_rate_that_was_set_stays_through_resume_and_the_other_groups_keep_theirs(tmp_path: Path) -> None:
    callback = Asking(lambda event: event.run.set_learning_rate(1e-2, "actor"), 60)
    run = train(tmp_path, name="whole", callbacks=[callback], actor_learning_rate=1e-3, critic_learning_rate=2e-3)
    assert rates(run.path, "actor") == pytest.approx({40: 1e-3, 60: 1e-2, 100: 1e-2, 120: 1e-2})
    assert set(rates(run.path, "critic").values()) == {2e-3}
    part = train(
        tmp_path,
        name="part",
        callbacks=[Asking(callback.ask, 60)],
        actor_learning_rate=1e-3,
        critic_learning_rate=2e-3,
        total_steps=80,
    )
    resumed = offbeat.resume(part.path, total_steps=120)
    assert digest(resumed.path) == digest(run.path)
    assert rates(resumed.path, "actor")[120] == pytest.approx(1e-2)


def agent(**settings: Any) -> offbeat.Agent:
    return offbeat.Agent("sac", "Pendulum-v1", **SMALL, **settings)


def act(agent: offbeat.Agent, steps: int) -> dict[str, float]:
    env, metrics = gymnasium.make("Pendulum-v1"), {}
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        action = agent.act(obs)
        following, reward, terminated, truncated, _ = env.step(action)
        agent.observe(obs, action, reward, following, terminated, truncated)
        metrics = agent.update()
        obs = following
    return metrics


def test_a_schedule_goes_on_from_the_rate_that_was_set() -> None:
    scheduled = agent(actor_schedule="linear", actor_learning_rate=3e-4, total_steps=105)
    act(scheduled, 55)
    assert scheduled.learner.rates()["actor"] == pytest.approx(0.5 * 3e-4)
    scheduled.set_learning_rate(1e-2)
    assert scheduled.learner.rates() == pytest.approx({"actor": 1e-2, "critic": 1e-2, "temperature": 1e-2})
    act(scheduled, 25)
    assert scheduled.learner.rates() == pytest.approx({"actor": 5e-3, "critic": 1e-2, "temperature": 1e-2})


def test_an_agent_of_ones_own_loop_keeps_its_rates_and_returns_its_numbers(tmp_path: Path) -> None:
    one = agent()
    act(one, 10)
    one.set_learning_rate(5e-3, "critic")
    one.log("mine", 3)
    assert one.update(1)["mine"] == 3.0
    assert "mine" not in one.update(1)
    one.save(tmp_path)
    other = agent()
    other.load(tmp_path)
    assert other.learner.rates() == one.learner.rates()
    changed = agent(critic_learning_rate=7e-3)  # the settings of now count, where they are others than then
    changed.load(tmp_path)
    assert changed.learner.rates()["critic"] == 7e-3


def test_a_rate_or_group_of_no_use_is_refused() -> None:
    with pytest.raises(UsageError, match="group='policy' is none of actor, critic, temperature"):
        agent().set_learning_rate(1e-3, "policy")
    with pytest.raises(UsageError, match=r"rate=-1.* it must be at least 0"):
        agent().set_learning_rate(-1)


def test_adaptive_rates_of_rollouts_start_from_the_rate_that_was_set(tmp_path: Path) -> None:
    settings = {"rollout_steps": 10, "epochs": 2, "minibatches": 2, "rate_control": "adaptive", "total_steps": 80}
    seen: list[dict[str, float]] = []

    class Setting:
        def on_update(self, event: Any) -> None:
            event.run.set_learning_rate(2e-3)
            seen.append(event.agent.learner.rates())

    quiet = {"quiet": True, "logger": (), "threads": 1, "out": str(tmp_path), "eval_episodes": 1, "hidden": (8,)}
    run = offbeat.train("ppo", "CartPole-v1", callbacks=[Setting()], preset=None, **settings, **quiet)
    assert seen == [{"learning": pytest.approx(2e-3)}] * 8
    assert json.loads((run.path / "summary.json").read_text())["status"] == "finished"
