"""A run that goes on differently: what may change does, what may not is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

import offbeat
from offbeat.algorithms.registry import ALGORITHMS
from offbeat.errors import UsageError
from offbeat.observe.jsonl import read
from offbeat.run.changes import FIXED, changed, check_env_kept
from offbeat.settings import flatten, make_config, read_yaml, train_settings
from short_runs import train

EVERY = {each.name: each for algorithm in ALGORITHMS for each in train_settings(algorithm)}


def test_every_fixed_setting_exists() -> None:
    assert set(FIXED) <= set(EVERY)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("sac", {"hidden": [7]}),
        ("sac", {"num_envs": 3}),
        ("sac", {"seed": 3}),
        ("sac", {"updates_per_step": 0.5}),
        ("sac", {"temperature": "fixed"}),
        ("sac", {"normalise_observations": True}),
        ("sac", {"precision": "float64"}),
        ("sac", {"name": "other"}),
        ("sac", {"init_from": "other"}),
        ("sac", {"env_wrapper": "module:wrap"}),
        ("td3", {"exploration": "ornstein_uhlenbeck"}),
        ("dqn", {"dueling": True}),
        ("ppo", {"rollout_steps": 7}),
        ("ppo", {"optimiser": "sgd"}),
        ("ppo", {"initial_log_std": -1.0}),
    ],
)
def test_what_cannot_change_is_refused_by_name_with_the_reason(algorithm: str, changes: dict[str, Any]) -> None:
    recorded = flatten(make_config(algorithm, {"env": "X"}))
    (name,) = changes
    with pytest.raises(UsageError, match=rf"{name}=\S+ cannot change when a run is resumed \(it is .*\): \w+"):
        changed(algorithm, recorded, changes)
    config, told = changed(algorithm, recorded, {name: recorded[name]})  # no change
    assert (flatten(config), told) == (recorded, [])


def test_another_environment_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match=r"env=CartPole-v1 cannot change when a run is resumed \(it is Pendulum-v1\)"):
        check_env_kept("CartPole-v1", "Pendulum-v1")
    for given, recorded in (("gymnasium:Pendulum-v1", "Pendulum-v1"), ("a:make", "<lambda>"), (print, "Pendulum-v1")):
        check_env_kept(given, recorded)  # what is the same, or cannot be compared by name


def test_changes_are_laid_over_what_was_recorded_and_told() -> None:
    recorded = flatten(make_config("sac", {"env": "X", "env_kwargs": {"a": 1}, "stop_return": 5.0, "quiet": True}))
    changes = {"learning_rate": 0.5, "critic_learning_rate": 0.25, "env_kwargs": {"b": 2}, "stop_return": None}
    config, told = changed("sac", recorded, changes)
    assert config == make_config(
        "sac",
        {
            **recorded,
            **{"actor_learning_rate": 0.5, "temperature_learning_rate": 0.5, "critic_learning_rate": 0.25},
            **{"env_kwargs": {"a": 1, "b": 2}, "stop_return": None, "quiet": False},
        },
    )
    assert told == [
        "changed: env_kwargs from a=1 to a=1 b=2",
        "changed: stop_return from 5.0 to none",
        "changed: actor_learning_rate from 0.001 to 0.5",
        "changed: critic_learning_rate from 0.001 to 0.25",
        "changed: temperature_learning_rate from 0.001 to 0.5",
    ]


def test_a_callable_that_no_file_could_hold_is_given_again_and_is_no_change() -> None:
    def wrap(env: gymnasium.Env) -> gymnasium.Env:
        return env

    recorded = flatten(make_config("sac", {"env": "X", "env_wrapper": wrap}))
    with pytest.raises(UsageError, match="give it again"):
        changed("sac", recorded, {})
    config, told = changed("sac", recorded, {"env_wrapper": wrap})
    assert config.run.environment.env_wrapper is wrap
    assert told == []


class Rates:
    rates: dict[str, float]

    def on_update(self, event: Any) -> None:
        self.rates = event.agent.learner.rates()


CHANGES: dict[str, Any] = {
    **{"total_steps": 200, "learning_rate": 0.5, "actor_schedule": "linear", "gamma": 0.5, "tau": 0.5, "n_step": 2},
    **{"batch_size": 4, "capacity": 150, "eval_every": 50, "eval_episodes": 3, "log_every": 20, "checkpoint_every": 0},
    **{"max_grad_norm": 1.0, "target_every": 2, "actor_every": 2, "reward_scale": 2.0, "log_std_min": -3.0},
    **{"temperature_target_entropy": -3.0, "acting": "torch", "gradients": "autograd", "env_kwargs": {"g": 9.0}},
}


def test_a_run_goes_on_with_other_settings_and_records_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, seen = train(tmp_path), Rates()
    assert capsys.readouterr().out == ""
    resumed = offbeat.resume(run.path, **CHANGES, callbacks=[seen])
    out = capsys.readouterr().out  # quiet was the first session's alone
    assert "changed: total_steps from 120 to 200" in out
    assert "changed: gamma from 0.99 to 0.5" in out
    assert seen.rates["critic"] == 0.5
    assert seen.rates["actor"] < 0.25  # the schedule is over the whole run, most of which is over
    assert [each.step for each in resumed.history][-2:] == [160, 200]  # by the new interval
    assert len(resumed.history[-1].returns) == 3
    assert [line["step"] for line in read(run.path / "metrics.jsonl")][-4:] == [140, 160, 180, 200]
    recorded = read_yaml(run.path / "config.yaml")
    flat = {name: value for name, value in CHANGES.items() if name in recorded}
    assert {name: recorded[name] for name in flat} == flat
    assert (recorded["actor_learning_rate"], recorded["temperature"]["target_entropy"]) == (0.5, -3.0)
    assert offbeat.resume(run.path, total_steps=240, quiet=True).status == "finished"


def test_collectors_are_tuned_on_resume(tmp_path: Path) -> None:
    run = train(tmp_path, num_envs=2, collectors=1, slack=4)
    again = offbeat.resume(run.path, total_steps=200, slack=40, collect_ahead=2, max_policy_lag=100, hang_seconds=30.0)
    assert again.status == "finished"
    assert read_yaml(run.path / "config.yaml")["slack"] == 40


def test_a_finished_run_says_so_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path)
    offbeat.resume(run.path)
    assert "this run is finished: it has made its 120 steps" in capsys.readouterr().out
    offbeat.resume(run.path, total_steps=140)
    assert "finished: it has" not in capsys.readouterr().out
    limited = train(tmp_path, total_updates=50)
    offbeat.resume(limited.path)
    assert "it has made its 50 updates, and nothing is left to train; to go on" in capsys.readouterr().out
