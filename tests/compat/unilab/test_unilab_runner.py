"""Each parameter of `OffPolicyRunner` and of `learn` has its documented effect."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from own_learner import SMALL, Actor, Recorder, small

from offbeat.compat.unilab import (
    OffPolicyRunner,
    SACLearner,
    TD3Learner,
    build_reward_comparison_metrics,
    compute_train_start_threshold,
    register_env,
    replay_buffer_ready_for_learning,
)
from offbeat.compat.unilab.algos.torch.offpolicy.backend import LearnerBackend
from offbeat.errors import OffbeatError, UsageError
from offbeat.trace import NO_TRACE
from specs import vector_spec


def trained(path: Path, iterations: int = 3, save_interval: int = 0, logger: str = "none", **options: Any) -> Recorder:
    """The learner after some iterations in the run `path`."""
    runner = small(**options)
    runner.learn(iterations, save_interval, str(path), logger)
    runner.close()
    learner: Recorder = runner.learner
    return learner


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "run" / "summary.json").read_text())
    return found


def config(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((path / "run" / "config.yaml").read_text())
    return found


# Functions.


@pytest.mark.parametrize(
    ("batch", "starts", "envs", "wanted"), [(8, 0, 4, 8), (8, 5, 4, 20), (8, -3, 4, 8), (8, 9, 0, 9), (64, 3, 4, 64)]
)
def test_learning_starts_at_a_batch_and_after_so_many_vector_steps(
    batch: int, starts: int, envs: int, wanted: int
) -> None:
    assert compute_train_start_threshold(batch, starts, envs) == wanted
    for size, ready in ((wanted - 1, False), (wanted, True)):
        found = replay_buffer_ready_for_learning(size, batch_size=batch, learning_starts=starts, num_envs=envs)
        assert found is ready


def test_rewards_are_compared_by_the_latest_mean_over_100_episodes() -> None:
    assert build_reward_comparison_metrics(deque(), 3.0) == {}
    assert build_reward_comparison_metrics(deque([1.0, 2.5]), 3.0) == {"mean_ep100": 2.5}


# Iterations.


def test_an_iteration_is_a_vector_step_and_its_updates(tmp_path: Path) -> None:
    learner = trained(tmp_path, iterations=3, updates_per_step=5, policy_frequency=2)
    one = ["critic", "actor", "target", "critic", "target"]
    assert learner.calls == [*one, *one, *one[:3]] * 3
    assert learner.update_count == 3
    # Two vector steps fill a batch of 8; each later iteration takes one.
    assert summary(tmp_path)["env_steps"] == 4 * (2 + 2)


@pytest.mark.parametrize("frequency", [1, 3, 4])
def test_the_first_update_of_an_iteration_always_moves_the_actor(frequency: int, tmp_path: Path) -> None:
    learner = trained(tmp_path, iterations=2, updates_per_step=3, policy_frequency=frequency)
    of_each = {1: [True, True, True], 3: [True, False, False], 4: [True, False, False]}[frequency]
    moved = [learner.calls[index + 1] == "actor" for index, call in enumerate(learner.calls) if call == "critic"]
    assert moved == of_each * 2


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 2 + 4),
        ({"env_steps_per_sync": 3}, 3 + 4 * 3),
        ({"batch_size": 20}, 5 + 4),
        ({"batch_size": 20, "env_steps_per_sync": 3}, 6 + 4 * 3),
        ({"learning_starts": 7}, 7 + 4),
        ({"learning_starts": -2}, 2 + 4),
        ({"num_envs": 8}, 1 + 4),
    ],
)
def test_vector_steps_of_a_run(options: dict[str, Any], steps: int, tmp_path: Path) -> None:
    trained(tmp_path, iterations=5, **options)
    assert summary(tmp_path)["env_steps"] == steps * options.get("num_envs", 4)
    assert summary(tmp_path)["updates"] == 5 * 2


def test_updates_come_after_all_vector_steps_of_an_iteration(tmp_path: Path) -> None:
    learner, sizes = Recorder(), []
    runner = small(learner, env_steps_per_sync=3, batch_size=12)

    def update_critic(batch: Any) -> dict[str, float]:
        sizes.append(learner.update_count)
        return {}

    learner.update_critic = update_critic  # type: ignore[method-assign]
    runner.learn(4, 0, str(tmp_path), "none")
    assert sizes == [0, 0, 1, 1, 2, 2, 3, 3]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 4 * 3 * 4


def test_replay_holds_num_envs_times_replay_buffer_n_transitions(tmp_path: Path) -> None:
    trained(tmp_path, iterations=12, replay_buffer_n=5)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["replay"] == 4 * 5
    assert config(tmp_path)["capacity"] == 20


def test_a_batch_has_the_documented_entries(tmp_path: Path) -> None:
    batch = trained(tmp_path, batch_size=6).batches[-1]
    shapes = {name: tuple(column.shape) for name, column in batch.items()}
    rows = (6,)
    assert shapes == {
        **dict.fromkeys(("obs", "next_obs", "critic", "next_critic"), (6, 3)),
        "actions": (6, 1),
        **dict.fromkeys(("rewards", "dones", "truncated"), rows),
    }
    assert batch["critic"] is batch["obs"]
    assert batch["actions"].abs().max() <= 1.0


class Ending(gymnasium.Env[np.ndarray, np.ndarray]):
    """Ends after `length` steps: terminated, truncated, or both."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, length: int = 3, ends: str = "terminated", critic: bool = False) -> None:
        self.length, self.ends, self.steps, self.critic = length, ends, 0, critic
        if critic:
            wide = gymnasium.spaces.Box(-9.0, 9.0, (5,), np.float32)
            self.observation_space = gymnasium.spaces.Dict({"obs": Ending.observation_space, "critic": wide})

    def _observe(self) -> Any:
        obs = np.full(3, 0.1 * self.steps, np.float32)
        return {"obs": obs, "critic": np.full(5, self.steps, np.float32)} if self.critic else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == self.length
        return (
            self._observe(),
            float(action[0]),
            over and self.ends != "truncated",
            over and self.ends != "terminated",
            {},
        )


@pytest.mark.parametrize(("ends", "dones", "truncated"), [("terminated", 1, 0), ("truncated", 1, 1), ("both", 1, 0)])
def test_ends_of_episodes_are_told_apart(ends: str, dones: int, truncated: int, tmp_path: Path) -> None:
    register_env("ending", Ending)
    learner = trained(tmp_path, 8, env_name="ending", env_cfg_override={"length": 3, "ends": ends}, batch_size=16)
    batch = learner.batches[-1]
    last = batch["next_obs"][:, 0] > 0.25
    assert 0 < last.sum() < len(last)
    assert (batch["dones"] == last * dones).all()
    assert (batch["truncated"] == last * truncated).all()


def test_critics_see_the_critic_entry_of_a_dict_observation(tmp_path: Path) -> None:
    register_env("ending", Ending)
    runner = small(env_name="ending", env_cfg_override={"critic": True})
    assert (runner.obs_dim, runner.action_dim, runner.critic_obs_dim) == (3, 1, 5)
    runner.learn(2, 0, str(tmp_path), "none")
    batch = runner.learner.batches[-1]
    torch.testing.assert_close(batch["critic"][:, 0] * 0.1, batch["obs"][:, 0])
    assert batch["next_critic"].shape == (8, 5)


# Environments.


def test_the_environment_gets_its_overrides(tmp_path: Path) -> None:
    register_env("ending", Ending)
    learner = trained(tmp_path, 5, env_name="ending", env_cfg_override={"length": 2})
    assert learner.batches[-1]["next_obs"].max() == pytest.approx(0.2)
    with pytest.raises(OffbeatError, match="gravity"):
        small(env_name="ending", env_cfg_override={"gravity": 1.0})


def test_the_backend_picks_how_environments_are_stepped(tmp_path: Path) -> None:
    for backend in ("gymnasium", "sync"):
        trained(tmp_path / backend, 2, sim_backend=backend)
    assert config(tmp_path / "gymnasium")["env"] == "Pendulum-v1"
    assert config(tmp_path / "sync")["env"] == "<Pendulum-v1>"
    assert summary(tmp_path / "sync")["env_steps"] == summary(tmp_path / "gymnasium")["env_steps"]
    register_env("two ways", lambda: Ending(2), "short")
    register_env("two ways", lambda num_envs: gymnasium.vector.SyncVectorEnv([Ending] * num_envs), "all at once")
    for backend, reached in (("short", 0.2), ("all at once", 0.3)):
        learner = trained(tmp_path / backend, 6, env_name="two ways", sim_backend=backend)
        assert max(batch["next_obs"].max() for batch in learner.batches) == pytest.approx(reached)


def test_the_number_of_environments_is_stepped(tmp_path: Path) -> None:
    made: list[Ending] = []

    def make() -> Ending:
        made.append(Ending())
        return made[-1]

    register_env("counted", make)
    runner = small(env_name="counted", num_envs=6)
    probed = len(made)
    runner.learn(2, 0, str(tmp_path), "none")
    assert len(made) - probed == 6


# Acting.


def actions_of(learner: Recorder) -> torch.Tensor:
    return torch.cat([batch["actions"] for batch in learner.batches])


def test_no_action_is_random_before_learning_starts(tmp_path: Path) -> None:
    """With a noise of 0 every action is the policy's own."""
    learner = trained(tmp_path, 1, learning_starts=6, actor_kwargs={"scale": 0.0}, policy_frequency=9)
    fresh = Recorder().actor
    batch = learner.batches[0]
    with torch.no_grad():
        torch.testing.assert_close(fresh(batch["obs"]), batch["actions"], rtol=0.0, atol=1e-6)


def test_actor_kwargs_reach_the_actor_that_acts(tmp_path: Path) -> None:
    quiet = trained(tmp_path / "quiet", 3, actor_kwargs={"scale": 0.0})
    loud = trained(tmp_path / "loud", 3, actor_kwargs={"scale": 5.0})
    assert actions_of(loud).abs().mean() > actions_of(quiet).abs().mean() + 0.2
    with pytest.raises(UsageError, match=r"actor_kwargs=\{'loudness': 1\}"):
        small(actor_kwargs={"loudness": 1})


class PerEnvironment(Actor):
    """Has a noise scale of its own for each environment, like UniLab's TD3 actor."""

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.register_buffer("scales", torch.full((num_envs, 1), 0.1))

    def explore(self, obs: Any, dones: Any = None, deterministic: bool = False, scale: float = 0.3) -> Any:
        action = self(obs)
        return action if deterministic else action + self.scales * torch.randn_like(action)


@pytest.mark.parametrize("sync_collection", [True, False])
def test_an_actor_may_have_a_buffer_with_a_row_for_each_environment(sync_collection: bool, tmp_path: Path) -> None:
    learner = Recorder()
    learner.actor = PerEnvironment(4)
    assert trained(tmp_path, 2, learner=learner, sync_collection=sync_collection).update_count == 2


@pytest.mark.parametrize("kind", [SACLearner, TD3Learner])
def test_actor_kwargs_bound_the_deviation_of_our_actors(kind: Any, tmp_path: Path) -> None:
    spread = {}
    for name, bounds in (("low", (-9.0, -8.0)), ("high", (0.5, 1.0))):
        torch.manual_seed(0)
        learner = kind(3, 1, actor_hidden_dim=16, critic_hidden_dim=16)
        options = {"log_std_min": bounds[0], "log_std_max": bounds[1]}
        runner = small(learner, algo_type=kind.algo_type, actor_hidden_dim=16, actor_kwargs=options)
        seen: list[torch.Tensor] = []
        update = learner.update_critic

        def record(batch: Any, update: Callable[..., Any] = update, seen: list[torch.Tensor] = seen) -> Any:
            seen.append(batch["actions"])
            return update(batch)

        learner.update_critic = record
        runner.learn(3, 0, str(tmp_path / name), "none")
        spread[name] = float(torch.cat(seen).std())
    assert spread["low"] < 0.2 < 0.4 < spread["high"]


def test_observations_are_normalised_for_acting_and_learning(tmp_path: Path) -> None:
    register_env("ending", Ending)
    plain = trained(tmp_path / "plain", 20, env_name="ending", env_cfg_override={"length": 50})
    normal = trained(
        tmp_path / "normal", 20, env_name="ending", env_cfg_override={"length": 50}, obs_normalization=True
    )
    assert plain.batches[-1]["obs"].min() >= 0.0
    assert normal.batches[-1]["obs"].min() < -0.5
    assert normal.batches[-1]["obs"].abs().max() < 3.0
    learner = Recorder()
    learner.obs_normalizer = torch.nn.BatchNorm1d(3)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="normalised twice"):
        small(learner, obs_normalization=True)


def test_sizes_of_the_actor_must_fit_the_learner() -> None:
    learner = SACLearner(3, 1, actor_hidden_dim=16, critic_hidden_dim=16, use_layer_norm=False)
    small(learner, actor_hidden_dim=16, use_layer_norm=False)
    with pytest.raises(UsageError, match=r"actor_hidden_dim=512 \(layers \(512, 256, 128\)\).*\(16, 8, 4, 2\)"):
        small(learner, use_layer_norm=False)
    with pytest.raises(UsageError, match="use_layer_norm=True"):
        small(learner, actor_hidden_dim=16)


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


@pytest.mark.parametrize("env_steps_per_sync", [1, 2])
def test_free_running_makes_its_updates_while_environments_run(env_steps_per_sync: int, tmp_path: Path) -> None:
    learner = trained(tmp_path, 12, 5, sync_collection=False, env_steps_per_sync=env_steps_per_sync)
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
