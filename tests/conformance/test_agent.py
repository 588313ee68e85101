"""The agent that a loop of one's own drives: acts, observes, updates, saves, loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offbeat
from offbeat.errors import CheckpointError, UsageError
from specs import vector_spec

SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16, "random_steps": 30, "warmup_steps": 50, "capacity": 400}
algorithms = pytest.mark.parametrize("algorithm", ["sac"])


def _loop(agent: offbeat.Agent, env: gymnasium.Env, obs: Any, steps: int) -> Any:
    for _ in range(steps):
        action = agent.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        agent.observe(obs, action, reward, next_obs, terminated, truncated)
        obs = next_obs if not (terminated or truncated) else env.reset()[0]
        agent.update()
    return obs


def _same(left: offbeat.Agent, right: offbeat.Agent) -> bool:
    theirs = right.learner.arrays()
    return all(np.array_equal(array, theirs[name]) for name, array in left.learner.arrays().items())


@algorithms
def test_update_makes_what_the_ratio_and_the_warm_up_make_due(algorithm: str) -> None:
    env = gymnasium.make("Pendulum-v1")
    agent = offbeat.Agent(algorithm, env, updates_per_step=0.5, **SMALL)
    _loop(agent, env, env.reset(seed=0)[0], 80)
    assert agent.learner.updates == 15
    assert agent.update(3)["critic_loss"] >= 0
    assert agent.learner.updates == 18


@algorithms
def test_saved_and_loaded_agent_goes_on_as_the_first_would(algorithm: str, tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1")
    first = offbeat.Agent(algorithm, env, normalise_observations=True, **SMALL)
    obs = _loop(first, env, env.reset(seed=0)[0], 230)  # one episode end, and in mid-episode
    first.save(tmp_path / "agent")
    second = offbeat.Agent(algorithm, env, normalise_observations=True, **SMALL)
    assert not _same(first, second)
    second.load(tmp_path / "agent")
    assert second.steps == first.steps
    outcomes = []
    for agent in (first, second):
        action = agent.act(obs)
        agent.observe(obs, action, 0.5, obs + 1.0, False, False)
        agent.update(5)
        outcomes.append(action)
    np.testing.assert_array_equal(*outcomes)
    assert _same(first, second)
    np.testing.assert_array_equal(first.shard.read(0, 231).columns["step"], second.shard.read(0, 231).columns["step"])


def test_load_says_what_differs(tmp_path: Path) -> None:
    agent = offbeat.Agent("sac", vector_spec(3, 1), **SMALL)
    agent.observe(np.zeros(3), np.zeros(1), 0.0, np.zeros(3), False, False)
    agent.save(tmp_path)
    with pytest.raises(CheckpointError, match="layout"):
        offbeat.Agent("sac", vector_spec(4, 1), **SMALL).load(tmp_path)
    with pytest.raises(CheckpointError, match=r"actor/0/weight is \(3, 16\) there and \(3, 8\) here"):
        offbeat.Agent("sac", vector_spec(3, 1), **{**SMALL, "hidden": (8,)}).load(tmp_path)


def test_first_actions_are_uniform_within_the_bounds_and_later_ones_are_the_policys() -> None:
    agent = offbeat.Agent("sac", vector_spec(3, 1, low=-2.0, high=6.0), **SMALL)
    obs = np.ones(3, np.float32)
    early = np.array([agent.act(obs) for _ in range(500)])
    assert early.min() < -1.7
    assert early.max() > 5.7
    np.testing.assert_array_equal(agent.act(obs, deterministic=True), agent.act(obs, deterministic=True))
    agent.observe(np.ones((30, 3)), np.zeros((30, 1)), np.zeros(30), np.ones((30, 3)), [False] * 30, [False] * 30)
    later = np.array([agent.act(obs) for _ in range(500)])
    assert abs(later.mean() - agent.act(obs, deterministic=True)) < 1.0  # around the policy's mean, no longer uniform
    assert agent.act(np.ones((7, 3))).shape == (7, 1)


def test_rows_of_an_own_loop_know_their_environment_episode_and_step() -> None:
    agent = offbeat.Agent("sac", vector_spec(3, 1), **SMALL)
    for step in range(4):
        ended = [step == 1, False]
        agent.observe(np.full((2, 3), step), np.zeros((2, 1)), [1, 2], np.full((2, 3), step + 1), ended, [False, False])
    columns = agent.shard.read(0, 8).columns
    assert columns["env"].tolist() == [0, 1] * 4
    assert columns["episode"].tolist() == [0, 0, 0, 0, 1, 0, 1, 0]
    assert columns["step"].tolist() == [0, 0, 1, 1, 0, 2, 1, 3]


def test_wrong_rows_are_refused_in_words() -> None:
    agent = offbeat.Agent("sac", vector_spec(3, 1, state=2), **SMALL)
    zeros = np.zeros(3)
    with pytest.raises(UsageError, match="observe at least one"):
        agent.update(1)
    with pytest.raises(UsageError, match="next_state="):
        agent.observe(zeros, np.zeros(1), 0.0, zeros, False, False)
    states = {"state": np.zeros(2), "next_state": np.zeros(2)}
    with pytest.raises(UsageError, match="not finite"):
        agent.observe(zeros, np.zeros(1), 0.0, zeros + np.nan, False, False, **states)
    with pytest.raises(UsageError, match="reward"):
        agent.observe(zeros, np.zeros(1), np.inf, zeros, False, False, **states)
    with pytest.raises(UsageError, match="next_state"):
        agent.observe(zeros, np.zeros(1), 0.0, zeros, False, False, state=np.zeros(2), next_state=np.full(2, np.nan))
    with pytest.raises(UsageError, match="bounds"):
        agent.observe(zeros, np.full(1, 4.5), 0.0, zeros, False, False, **states)
    with pytest.raises(UsageError, match="2 observations came with 1"):
        agent.observe(np.zeros((2, 3)), np.zeros(1), 0.0, zeros, False, False, **states)
    agent.observe(zeros, np.zeros(1), 0.0, zeros, False, False, **states)
    assert agent.steps == 1


def test_settings_that_only_a_run_heeds_are_refused() -> None:
    for key, value in (("reward_shaping", abs), ("eval_every", 10), ("threads", 2), ("max_episode_steps", 5)):
        with pytest.raises(UsageError, match=f"{key} is a setting of a run"):
            offbeat.Agent("sac", vector_spec(3, 1), **{key: value})
    with pytest.raises(UsageError, match="total_updates"):
        offbeat.Agent("sac", vector_spec(3, 1), actor_schedule="linear")
    assert (
        offbeat.Agent("sac", vector_spec(3, 1), actor_schedule="linear", total_updates=10).learner.planned_updates == 10
    )


def test_a_wrapper_changes_what_the_agent_sees() -> None:
    wrapper = gymnasium.wrappers.TimeAwareObservation
    assert offbeat.Agent("sac", "Pendulum-v1", env_wrapper=wrapper, **SMALL).spec.observation_size == 4


def test_a_capacity_beyond_any_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="GiB"):
        offbeat.Agent("sac", vector_spec(3, 1), capacity=10**15)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"terminated": np.nan}, "terminated"),
        ({"truncated": "no"}, "truncated"),
        ({"envs": [0, 0]}, "every environment once"),
        ({"envs": [0, -1]}, "environments are numbered"),
        ({"envs": [0, 1 << 24]}, "environments are numbered"),
        ({"reward": [1.0]}, "reward"),
        ({"action": np.zeros((2, 5))}, "action"),
    ],
)
def test_a_row_that_is_refused_changes_nothing(changes: dict[str, Any], words: str) -> None:
    agent = offbeat.Agent("sac", vector_spec(3, 1), **SMALL)
    good: dict[str, Any] = {
        "obs": np.zeros((2, 3)),
        "action": np.zeros((2, 1)),
        "reward": [0.0, 1.0],
        "next_obs": np.zeros((2, 3)),
        "terminated": [False, True],
        "truncated": [0, 0],
    }
    with pytest.raises(UsageError, match=words):
        agent.observe(**{**good, **changes})
    assert agent.steps == len(agent.experience) == 0
    agent.observe(**good)
    assert agent.shard.read(0, 2).columns["step"].tolist() == [0, 0]
    with pytest.raises(UsageError, match="count=-3"):
        agent.update(-3)


def test_settings_of_an_environment_need_one() -> None:
    with pytest.raises(UsageError, match="env_wrapper has nothing to act on"):
        offbeat.Agent("sac", vector_spec(3, 1), env_wrapper="no:no")
