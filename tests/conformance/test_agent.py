"""The agent that a loop of one's own drives: acts, observes, updates, saves, loads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offbeat
from backends import backends_of
from offbeat.errors import CheckpointError, UsageError
from specs import vector_spec

SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16, "random_steps": 30, "warmup_steps": 50, "capacity": 400}


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


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_update_makes_what_the_ratio_and_the_warm_up_make_due(backend: str) -> None:
    env = gymnasium.make("Pendulum-v1")
    agent = offbeat.Agent("sac", env, updates_per_step=0.5, backend=backend, **SMALL)
    _loop(agent, env, env.reset(seed=0)[0], 80)
    assert agent.learner.updates == 15
    assert agent.update(3)["critic_loss"] >= 0
    assert agent.learner.updates == 18


@pytest.mark.parametrize(
    ("algorithm", "env_id", "own"),
    [
        ("sac", "Pendulum-v1", {}),
        ("sac", "Pendulum-v1", {"backend": "jax"}),
        ("redq", "Pendulum-v1", {"critics": 3, "updates_per_step": 2.0}),
        ("td3", "Pendulum-v1", {"exploration": "ornstein_uhlenbeck"}),
        ("ddpg", "Pendulum-v1", {}),
        ("dqn", "CartPole-v1", {"exploration_steps": 1_000}),
        ("dqn", "CartPole-v1", {"exploration_steps": 1_000, "backend": "jax"}),
    ],
)
def test_saved_and_loaded_agent_goes_on_as_the_first_would(
    algorithm: str, env_id: str, own: dict[str, Any], tmp_path: Path
) -> None:
    env, settings = gymnasium.make(env_id), {**SMALL, "normalise_observations": True, **own}
    first = offbeat.Agent(algorithm, env, **settings)
    obs = _loop(first, env, env.reset(seed=0)[0], 230)  # one episode end, and in mid-episode
    first.save(tmp_path / "agent")
    second = offbeat.Agent(algorithm, env_id, **settings)  # by its id, which is the same environment
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
    steps = [agent.training.shards["0"].read(0, 231).columns["step"] for agent in (first, second)]
    np.testing.assert_array_equal(*steps)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_load_says_what_differs(backend: str, tmp_path: Path) -> None:
    small = {**SMALL, "backend": backend}
    agent = offbeat.Agent("sac", vector_spec(3, 1), **small)
    agent.observe(np.zeros(3), np.zeros(1), 0.0, np.zeros(3), False, False)
    agent.save(tmp_path)
    with pytest.raises(CheckpointError, match="layout"):
        offbeat.Agent("sac", vector_spec(4, 1), **small).load(tmp_path)
    with pytest.raises(CheckpointError, match=r"actor/0/weight is \(3, 16\) there and \(3, 8\) here"):
        offbeat.Agent("sac", vector_spec(3, 1), **{**small, "hidden": (8,)}).load(tmp_path)


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
    columns = agent.training.shards["0"].read(0, 8).columns
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


@pytest.mark.parametrize("updates", [10, 500_000])  # fewer and more than the steps of a run that names none
def test_schedules_of_an_own_loop_run_over_the_updates_that_it_names(updates: int) -> None:
    planned = {"total_updates": updates}
    assert (
        offbeat.Agent("sac", vector_spec(3, 1), actor_schedule="linear", **planned).learner.planned_updates == updates
    )
    agent = offbeat.Agent(
        "ppo", vector_spec(3, 1), schedule="linear", rollout_steps=4, minibatches=1, epochs=1, **planned
    )
    for turn in range(2):
        for _ in range(4):
            agent.observe(np.zeros(3), agent.act(np.zeros(3)), 0.0, np.zeros(3), False, False)
        agent.update()
        assert agent.learner.updates == turn + 1
        assert agent.learner.progress == pytest.approx(turn / updates)


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
        ({"reward": ["1.0", "2.0"]}, "reward is .* need numbers"),
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
    assert agent.training.shards["0"].read(0, 2).columns["step"].tolist() == [0, 0]
    with pytest.raises(UsageError, match="count=-3"):
        agent.update(-3)


def test_settings_of_an_environment_need_one() -> None:
    with pytest.raises(UsageError, match="env_wrapper has nothing to act on"):
        offbeat.Agent("sac", vector_spec(3, 1), env_wrapper="no:no")


# Algorithms that learn from rollouts

TURN = 2 * 4
ROLLOUTS: dict[str, Any] = {"hidden": (16, 16), "rollout_steps": 20, "epochs": 2, "minibatches": 4}
from_rollouts = pytest.mark.parametrize("algorithm", ["ppo", "appo"])
on_both = pytest.mark.parametrize(
    ("algorithm", "backend"),
    [
        pytest.param(each, backend, marks=[pytest.mark.slow] * ((each, backend) == ("ppo", "jax")))
        for each in ("ppo", "appo")
        for backend in backends_of(each)
    ],
)


def _vector_loop(agent: offbeat.Agent, envs: gymnasium.vector.VectorEnv, obs: Any, steps: int) -> Any:
    """With environments whose step returns the first observation of the next episode, and the final one in info."""
    for _ in range(steps):
        action = agent.act(obs)
        following, reward, terminated, truncated, info = envs.step(action)
        final = following.copy()
        for env in np.flatnonzero(terminated | truncated):
            final[env] = info["final_obs"][env]
        agent.observe(obs, action, reward, final, terminated, truncated)
        obs = following
        agent.update()
    return obs


@on_both
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_updates_happen_when_a_rollout_is_complete(algorithm: str, backend: str, env: str) -> None:
    made = gymnasium.make(env)
    agent = offbeat.Agent(algorithm, made, backend=backend, **ROLLOUTS)
    obs, _ = made.reset(seed=0)
    for rollout in range(3):
        obs = _loop(agent, made, obs, 19)
        assert agent.learner.updates == rollout * TURN
        assert agent.update() == {}
        assert len(agent.experience) == 19
        obs = _loop(agent, made, obs, 1)
        assert agent.learner.updates == (rollout + 1) * TURN
    assert agent.steps == 60


@from_rollouts
def test_a_rollout_of_an_own_loop_may_be_of_many_environments(algorithm: str) -> None:
    envs = gymnasium.make_vec(
        "CartPole-v1", 3, "sync", vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    )
    agent = offbeat.Agent(algorithm, "CartPole-v1", **ROLLOUTS)
    _vector_loop(agent, envs, envs.reset(seed=0)[0], 60)
    assert (agent.steps, agent.learner.updates) == (180, 3 * TURN)


@from_rollouts
def test_update_says_what_it_did_and_makes_no_more_than_it_is_asked_for(algorithm: str) -> None:
    env = gymnasium.make("Pendulum-v1")
    agent = offbeat.Agent(algorithm, env, **ROLLOUTS)
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        action = agent.act(obs)
        after, reward, *flags, _ = env.step(action)
        agent.observe(obs, action, reward, after, *flags)
        obs = after
    metrics = agent.update(3)
    assert {
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "explained_variance",
        "value",
    } <= metrics.keys()
    assert np.isfinite(list(metrics.values())).all()
    assert agent.learner.updates == 3
    assert agent.update(5) == {}, "its turn is over"


def test_what_was_not_acted_is_refused_in_words_and_changes_nothing() -> None:
    agent = offbeat.Agent("ppo", vector_spec(3, 2, low=-2.0, high=2.0), **ROLLOUTS)
    zeros, rows = np.zeros((2, 3)), {"reward": np.zeros(2), "terminated": [False] * 2, "truncated": [False] * 2}

    def observe(action: Any, **changes: Any) -> None:
        agent.observe(**{"obs": zeros, "action": action, "next_obs": zeros, **rows, **changes})

    with pytest.raises(UsageError, match="ppo learns from steps that it has acted in: call act, not deterministic"):
        observe(np.zeros((2, 2)))
    agent.act(zeros, deterministic=True)
    with pytest.raises(UsageError, match="call act, not deterministic"):
        observe(np.zeros((2, 2)))
    action = agent.act(zeros)
    with pytest.raises(UsageError, match="not the actions that act has just given"):
        observe(np.clip(action + 0.1, -2.0, 2.0) - 0.05)
    with pytest.raises(UsageError, match="reward"):
        observe(action, reward=np.full(2, np.nan))
    with pytest.raises(UsageError, match="observe once for all"):
        observe(action, envs=[1, 0])
    assert (agent.steps, len(agent.experience)) == (0, 0)
    observe(action)
    assert (agent.steps, len(agent.experience)) == (2, 2)
    with pytest.raises(UsageError, match="call act"):
        observe(action)  # each only once
    agent.act(np.zeros(3))
    with pytest.raises(UsageError, match="for all 2 environments"):
        agent.observe(np.zeros(3), np.zeros(2), 0.0, np.zeros(3), False, False)


def test_actions_beyond_the_bounds_are_stored_as_they_were_drawn() -> None:
    """The environment is given the bound, but likelihoods are of the draw."""
    agent = offbeat.Agent("ppo", vector_spec(3, 1, low=-2.0, high=2.0), initial_log_std=1.0, **ROLLOUTS)
    rows = np.zeros((50, 3))
    action = agent.act(rows)
    assert np.abs(action).max() == 2.0
    agent.observe(rows, action, np.zeros(50), rows, [False] * 50, [False] * 50)
    stored = agent.experience.arrays()["filling/rows"].view(agent.experience.schema.row)["action"].ravel()
    assert np.abs(stored).max() > 1.0
    np.testing.assert_allclose(np.clip(stored, -1, 1) * 2.0, action.ravel(), rtol=1e-6)


@on_both
@pytest.mark.parametrize("steps", [50, 60])
def test_a_rollout_that_is_half_filled_is_saved_and_goes_on(
    algorithm: str, backend: str, steps: int, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"normalise_observations": True, "normalise_rewards": True, "backend": backend}
    more |= {"sample_reuse": 2, "target_every": 3} if algorithm == "appo" else {}
    vector: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    agents = [offbeat.Agent(algorithm, "CartPole-v1", **ROLLOUTS, **more) for _ in range(2)]
    envs = gymnasium.make_vec("CartPole-v1", 2, "sync", vector_kwargs=vector)
    obs = _vector_loop(agents[0], envs, envs.reset(seed=0)[0], steps)
    agents[0].save(tmp_path / "agent")
    agents[1].load(tmp_path / "agent")
    assert agents[1].steps == agents[0].steps == 2 * steps
    for agent in agents:
        other = gymnasium.make_vec("CartPole-v1", 2, "sync", vector_kwargs=vector)
        other.reset(seed=1)
        _vector_loop(agent, other, obs, 50)
    assert agents[0].learner.updates >= 5 * TURN
    assert _same(*agents)
    np.testing.assert_array_equal(agents[0].act(obs), agents[1].act(obs))


def test_a_run_goes_on_with_another_function_that_makes_the_same_environment(tmp_path: Path) -> None:
    settings = {**SMALL, "total_steps": 60, "eval_episodes": 1, "max_episode_steps": 20, "quiet": True, "logger": ()}
    run = offbeat.train("sac", lambda: gymnasium.make("Pendulum-v1"), out=str(tmp_path), **settings)

    def made_again() -> gymnasium.Env:
        return gymnasium.make("Pendulum-v1")

    assert offbeat.resume(run.path, env=made_again, total_steps=80).status == "finished"
    with pytest.raises(CheckpointError, match="action_low"):
        offbeat.resume(run.path, env=lambda: gymnasium.make("MountainCarContinuous-v0"), total_steps=90)


def test_agents_of_two_ids_with_the_same_spaces_are_not_taken_for_each_other(tmp_path: Path) -> None:
    agent = offbeat.Agent("sac", "InvertedPendulum-v5", **SMALL)
    agent.save(tmp_path)
    with pytest.raises(CheckpointError, match="name: InvertedPendulum-v5 there, InvertedPendulum-v4 here"):
        offbeat.Agent("sac", dataclasses.replace(agent.spec, name="InvertedPendulum-v4"), **SMALL).load(tmp_path)
