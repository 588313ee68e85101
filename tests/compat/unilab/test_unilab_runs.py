"""Seeds, devices, files, traces, free running and bad input of `OffPolicyRunner` and of `learn`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from unilab_learner import SMALL, Ending, Recorder, actions_of, config, small, trained

from offbeat.compat.unilab import (
    OffPolicyRunner,
    SACLearner,
    register_env,
)
from offbeat.compat.unilab.algos.torch.offpolicy.backend import LearnerBackend
from offbeat.errors import UsageError
from offbeat.trace import NO_TRACE
from specs import vector_spec

# Seeds, devices, files.


def test_a_seed_repeats_a_run_and_none_draws_one_and_records_it(tmp_path: Path) -> None:
    first, again = (actions_of(trained(tmp_path / name, seed=3)) for name in ("first", "again"))
    torch.testing.assert_close(first, again, rtol=0.0, atol=0.0)
    assert not torch.equal(first, actions_of(trained(tmp_path / "other", seed=4)))
    runners = [small(seed=None) for _ in range(2)]
    for index, runner in enumerate(runners):
        runner.learn(1, 0, str(tmp_path / str(index)), "none")
        assert config(tmp_path / str(index))["seed"] == runner.seed
    assert runners[0].seed != runners[1].seed


def test_the_kind_of_algorithm_is_recorded(tmp_path: Path) -> None:
    for kind in ("sac", "td3"):
        trained(tmp_path / kind, 1, algo_type=kind)
        assert config(tmp_path / kind)["algorithm"] == f"unilab_{kind}"


def test_a_device_is_chosen_or_checked(tmp_path: Path) -> None:
    assert small().device == ("cuda" if torch.cuda.is_available() else "cpu")
    trained(tmp_path, 1, device="cpu")
    assert config(tmp_path)["device"] == "cpu"
    with pytest.raises(UsageError, match="device='warp'"):
        small(device="warp")


@pytest.mark.parametrize(("interval", "models"), [(2, [2, 4, 5]), (0, [5]), (-1, [5]), (5, [5])])
def test_models_and_checkpoints_are_saved_every_so_many_iterations(
    interval: int, models: list[int], tmp_path: Path
) -> None:
    learner = trained(tmp_path, 5, interval)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [f"model_{each}.pt" for each in models]
    saved = torch.load(tmp_path / "model_5.pt", weights_only=True)
    torch.testing.assert_close(saved["actor"], dict(learner.actor.state_dict()))
    log = (tmp_path / "run" / "log.txt").read_text()
    steps = [4 * (1 + each) for each in models]
    assert [f"step {step}: checkpoint" in log for step in steps] == [True] * len(models)
    assert log.count(": checkpoint") == 1 + len(models)  # the first is written before the first step


def test_the_run_is_in_log_dir_which_may_hold_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "notes.txt").write_text("mine")
    small().learn(1)
    assert {"notes.txt", "model_1.pt", "run"} == {path.name for path in (tmp_path / "logs").iterdir()}
    assert list((tmp_path / "logs" / "run" / "tensorboard").iterdir())


def test_a_logger_is_chosen(tmp_path: Path) -> None:
    trained(tmp_path / "with", logger="tensorboard")
    trained(tmp_path / "without", logger="none")
    assert (tmp_path / "with" / "run" / "tensorboard").exists()
    assert not (tmp_path / "without" / "run" / "tensorboard").exists()
    with pytest.raises(UsageError, match=r"logger_type='csv' is unknown; use tensorboard, wandb"):
        small().learn(1, 0, str(tmp_path / "none"), "csv")
    assert not (tmp_path / "none").exists()


def test_mean_returns_of_100_episodes_are_logged(tmp_path: Path) -> None:
    register_env("ending", Ending)
    runner = small(env_name="ending")
    runner.learn(30, 0, str(tmp_path), "none")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["mean_ep100"] == pytest.approx(lines[-1]["return_100"])
    assert runner.last_run_summary["final_mean_reward"] == pytest.approx(lines[-1]["return_100"])
    assert runner.last_run_summary["mean_episode_length"] == 3.0


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_a_trace_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    trained(tmp_path / "none")
    assert not (tmp_path / "none" / "trace.json").exists()
    trained(tmp_path / "plain", trace_enabled=True)
    names = {event["name"] for event in events(tmp_path / "plain" / "trace.json")}
    assert {"update_critic", "update_actor", "update_target"} <= names
    trained(tmp_path / "cpu", trace_enabled=True, trace_output_dir=str(tmp_path / "there"), trace_thread_time=True)
    assert not (tmp_path / "cpu" / "trace.json").exists()
    timed = [
        [event for event in events(tmp_path / where / "trace.json") if "tdur" in event] for where in ("plain", "there")
    ]
    assert not timed[0]
    assert timed[1]


@pytest.mark.parametrize("cuda_events", [True, False])
def test_cuda_events_are_recorded_on_a_gpu_only(cuda_events: bool) -> None:
    class Settings:
        updates_per_iteration, policy_frequency = 1, 1

    backend = LearnerBackend(
        Recorder(), Settings, vector_spec(3, 1), device="cpu", cuda_events=cuda_events, after_iteration=print
    )
    backend.trace_parts(NO_TRACE)
    assert backend._trace is NO_TRACE
    backend._device = torch.device("cuda")
    backend.trace_parts(NO_TRACE)
    assert (backend._trace == NO_TRACE.cuda) is cuda_events


# Free running.


def test_free_running_makes_its_updates_while_environments_run(tmp_path: Path) -> None:
    learner = trained(tmp_path, 12, 5, sync_collection=False)
    assert learner.calls.count("critic") == 12 * 2
    assert learner.update_count == 12
    found = config(tmp_path)
    assert (found["pace"], found["collectors"]) == ("free", 1)
    assert {path.name for path in tmp_path.glob("*.pt")} == {"model_5.pt", "model_10.pt", "model_12.pt"}


def test_a_synchronous_run_steps_and_learns_in_turns(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    found = config(tmp_path)
    assert (found["pace"], found["collectors"], found["random_steps"]) == ("held", 0, 0)


# Going on, and ending.


def test_learning_again_in_the_same_directory_goes_on(tmp_path: Path) -> None:
    runner = small()
    runner.learn(3, 0, str(tmp_path), "none")
    runner.learn(5, 0, str(tmp_path), "none")
    assert runner.learner.update_count == 5
    assert runner.learner.calls.count("critic") == 5 * 2
    runner.learn(5, 0, str(tmp_path), "none")
    assert runner.learner.calls.count("critic") == 5 * 2


def test_closing_twice_is_allowed_and_learning_afterwards_is_not(tmp_path: Path) -> None:
    runner = small()
    runner.close()
    runner.close()
    with pytest.raises(UsageError, match="closed"):
        runner.learn(1, 0, str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()


# Bad input.


class NoTarget(Recorder):
    soft_update_target = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learner": object()}, "learner is a object without update_critic, update_actor"),
        ({"learner": NoTarget()}, "NoTarget without soft_update_target"),
        ({"learner": Recorder(4)}, r"learner.actor raised RuntimeError for observations \(4, 3\)"),
        ({"learner": Recorder(3, 2)}, r"gave \(4, 2\) .* must be \(4, 1\)"),
        ({"algo_type": "ppo"}, "algo_type='ppo' is unknown; use sac or td3"),
        ({"learner": SACLearner(3, 1, actor_hidden_dim=8, critic_hidden_dim=8), "algo_type": "td3"}, "use 'sac'"),
        ({"env_name": "Pendulm-v1"}, "did you mean Pendulum-v1"),
        ({"env_name": "CartPole-v1"}, "Discrete"),
        ({"sim_backend": "warp"}, "sim_backend='warp' is unknown .* use mujoco, gymnasium, sync"),
        ({"num_envs": 0}, "num_envs=0 is out of range"),
        ({"updates_per_step": 0.5}, "updates_per_step=0.5 is out of range: it must be a whole number"),
        ({"policy_frequency": 0}, "policy_frequency=0"),
        ({"env_steps_per_sync": -1}, "env_steps_per_sync=-1"),
        ({"batch_size": 300}, "learning starts at 300 .* use replay_buffer_n >= 75"),
        ({"learning_starts": 65}, "replay holds 256 transitions .* learning starts at 260"),
    ],
)
def test_what_cannot_work_is_refused_when_the_runner_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        small(**options)


def test_iterations_must_be_whole_numbers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_iterations=0"):
        small().learn(0, 0, str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()


def test_defaults_are_those_of_4096_environments() -> None:
    runner = OffPolicyRunner(Recorder(), "Pendulum-v1", "sac")
    assert (runner.capacity, runner.train_start_threshold) == (4096 * 1024, 8192)
    assert SMALL["num_envs"] == 4
