"""Each parameter of `OffPolicyRunner` and of `learn` has its documented effect."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from unilab_learner import Actor, Ending, Recorder, actions_of, config, small, summary, trained

from offbeat.compat.unilab import (
    SACLearner,
    TD3Learner,
    build_reward_comparison_metrics,
    compute_train_start_threshold,
    register_env,
    replay_buffer_ready_for_learning,
)
from offbeat.errors import OffbeatError, UsageError

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


def test_an_actor_may_have_a_buffer_with_a_row_for_each_environment(tmp_path: Path) -> None:
    learner = Recorder()
    learner.actor = PerEnvironment(4)
    assert trained(tmp_path, 2, learner=learner).update_count == 2


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
