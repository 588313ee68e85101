"""Training from rollouts: when turns are due, and which statistics hold in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.errors import UsageError
from offbeat.run.training import Training
from offbeat.settings import make_config
from offbeat.types import Array, Chunk
from specs import vector_spec

SMALL: dict[str, Any] = {"hidden": (8,), "rollout_steps": 5, "epochs": 2, "minibatches": 3}
TURN = 2 * 3
algorithms = pytest.mark.parametrize("algorithm", ["ppo", "appo"])


def make(algorithm: str = "ppo", num_envs: int = 2, **settings: Any) -> offbeat.Agent:
    config = make_config(algorithm, {"num_envs": num_envs, **SMALL, **settings})
    training = Training(config, vector_spec(3, 1), num_envs=num_envs)
    training.experience.attach(training.experience.plan(0, num_envs, num_envs).open())
    return offbeat.Agent(training)


def step(agent: offbeat.Agent, rng: np.random.Generator, valid: Array | None = None, **columns: Any) -> None:
    """One vector step of all environments, or of those that are valid."""
    envs = np.flatnonzero(np.ones(agent.config.run.environment.num_envs, bool) if valid is None else valid)
    rows: dict[str, Array] = {
        each.name: np.zeros((len(envs), *each.shape), each.dtype)
        if each.dtype != "float32"
        else rng.standard_normal((len(envs), *each.shape)).astype(np.float32)
        for each in agent.experience.schema
    }
    agent.add(Chunk({**rows, "env": envs, "version": np.full(len(envs), agent.learner.updates), **columns}))


@algorithms
def test_a_turn_is_due_when_a_rollout_is_complete_and_not_before(algorithm: str) -> None:
    agent, rng = make(algorithm), np.random.default_rng(0)
    for rollout in range(3):
        for number in range(5):
            assert agent.training.due() == 0
            assert agent.training.learn(100) == 0
            assert len(agent.experience) == 2 * number
            step(agent, rng)
        assert agent.training.due() == TURN
        assert len(agent.experience) == 2 * 5
        assert agent.training.learn(TURN) == TURN
        assert agent.learner.updates == (rollout + 1) * TURN
        assert len(agent.experience) == 0
    assert agent.training.pace.planned(agent.steps) == agent.learner.updates
    assert agent.training.pace.planned(agent.steps - 1) == agent.training.pace.planned(agent.steps)
    assert agent.training.pace.planned(agent.steps + 1) == 4 * TURN
    assert agent.training.pace.ratio(agent.steps, agent.learner.updates) == pytest.approx(TURN / 10)


def test_sample_reuse_gives_a_rollout_further_turns_but_a_newer_one_takes_its_place() -> None:
    agent, rng = make("appo", sample_reuse=3), np.random.default_rng(0)
    for turns in (3, 1, 3):
        for _ in range(5):
            step(agent, rng)
        for _ in range(turns):
            assert agent.training.due() == TURN
            assert agent.training.learn(TURN) == TURN
    assert agent.training.due() == 0
    assert agent.learner.updates == 7 * TURN


def test_max_policy_lag_ends_the_turns_of_a_rollout_that_is_too_old() -> None:
    rng = np.random.default_rng(0)
    for lag, turns in ((TURN - 1, 1), (TURN, 2), (2 * TURN, 3), (None, 4)):
        more: dict[str, Any] = {} if lag is None else {"collectors": 1, "max_policy_lag": lag}
        agent = make("appo", sample_reuse=4, **more)
        for _ in range(5):
            step(agent, rng)
        while agent.training.due():
            agent.training.learn(TURN)
        assert agent.learner.updates == turns * TURN


@algorithms
def test_during_a_turn_observations_are_normalised_as_they_were_for_who_acted(algorithm: str) -> None:
    agent, rng = make(algorithm, normalise_observations=True), np.random.default_rng(0)
    counts, learn_rollout = [], agent.learner.learn_rollout

    def watched(*arguments: Any) -> int:
        seen = agent.learner.observations
        counts.append(float(seen.count))
        acting = agent.publication().weights
        np.testing.assert_allclose(acting["normaliser/mean"], seen.mean, rtol=1e-6)
        return learn_rollout(*arguments)

    agent.learner.learn_rollout = watched
    for _ in range(3):
        for _ in range(5):
            step(agent, rng)
            assert float(agent.learner.observations.count) == 10 * len(counts)
        agent.training.learn(TURN)
    assert counts == [10, 10, 20]  # the first is normalised by itself: there was nothing before it
    assert float(agent.learner.observations.count) == 30


def test_a_rollout_counts_once_in_every_statistic_however_often_it_is_learned_from() -> None:
    agent = make("appo", sample_reuse=3, normalise_observations=True, normalise_rewards=True)
    rng = np.random.default_rng(0)
    for _ in range(5):
        step(agent, rng)
    counts, learn_rollout = [], agent.learner.learn_rollout

    def watched(*arguments: Any) -> int:
        counts.append(float(agent.learner.returns.moments.count))
        return learn_rollout(*arguments)

    agent.learner.learn_rollout = watched
    for _ in range(3):
        agent.training.learn(TURN)
        assert counts.pop() == 10  # its rewards are scaled by themselves from its first turn on
        assert float(agent.learner.observations.count) == float(agent.learner.returns.moments.count) == 10


def test_final_observations_count_in_the_statistics() -> None:
    agent, rng = make(normalise_observations=True), np.random.default_rng(0)
    for number in range(5):
        ended = np.array([number == 2, False])
        step(agent, rng, terminated=ended, next_obs=np.full((2, 3), 100.0, np.float32))
    agent.training.learn(TURN)
    assert float(agent.learner.observations.count) == 10 + 1
    assert agent.learner.observations.mean == pytest.approx(np.full(3, 100 / 11), abs=2)


@algorithms
def test_calls_that_gave_no_row_take_a_place_in_the_rollout_and_are_not_learned_from(algorithm: str) -> None:
    agent, rng = make(algorithm, num_envs=3, normalise_rewards=True), np.random.default_rng(0)
    rows, learn_rollout = [], agent.learner.learn_rollout

    def watched(rollout: Any, *arguments: Any) -> int:
        rows.append(rollout.valid.copy())
        return learn_rollout(rollout, *arguments)

    agent.learner.learn_rollout = watched
    kept = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0], [1, 1, 1]], bool)
    for row in kept:
        step(agent, rng, row)
    assert agent.training.learn(TURN) == TURN
    np.testing.assert_array_equal(rows[0], kept)
    assert agent.steps == kept.sum()
    assert float(agent.learner.returns.moments.count) == kept.sum()


def test_a_rollout_without_any_row_is_passed_over() -> None:
    agent, rng = make(num_envs=1, rollout_steps=1), np.random.default_rng(0)
    step(agent, rng, np.array([False]))
    assert agent.training.due() == TURN
    assert agent.training.learn(TURN) == 0
    assert agent.training.due() == 0
    step(agent, rng)
    assert agent.training.learn(TURN) == 2  # one row makes one minibatch


def test_schedules_run_over_the_steps_that_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, rng = make(schedule="linear", learning_rate=1e-3, total_steps=40), np.random.default_rng(0)
    rates = []
    for _ in range(4):
        for _ in range(5):
            step(agent, rng)
        agent.training.learn(TURN)
        rates.append(agent.learner.rates()["learning"])
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_a_schedule_over_a_loop_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="schedule='linear'"):
        offbeat.Agent("ppo", vector_spec(3, 1), schedule="linear")
    assert offbeat.Agent("ppo", vector_spec(3, 1), schedule="linear", total_steps=10_000).steps == 0


@algorithms
@pytest.mark.parametrize(("taken", "turns"), [(3, 0), (5, 0), (5, 1), (7, 1), (7, 2)])
def test_what_was_saved_at_any_moment_goes_on_as_if_nothing_had_been(algorithm: str, taken: int, turns: int) -> None:
    """In the middle of a rollout, where one waits for its turn, and between two turns of one."""
    settings: dict[str, Any] = {"normalise_observations": True, "normalise_rewards": True}
    settings |= {"sample_reuse": 3, "target_every": 2} if algorithm == "appo" else {}
    first, second = (make(algorithm, **settings) for _ in range(2))
    rng = np.random.default_rng(0)
    for _ in range(taken):
        step(first, rng)
    for _ in range(turns):
        first.training.learn(TURN)
    second.training.restore(first.training.snapshot())
    assert second.steps == first.steps == 2 * taken
    assert len(second.experience) == len(first.experience)
    for agent in (first, second):
        rng = np.random.default_rng(1)
        for _ in range(12):
            while agent.training.due():
                agent.training.learn(TURN)
            step(agent, rng)
    for name, array in first.training.snapshot().arrays.items():
        np.testing.assert_array_equal(array, second.training.snapshot().arrays[name], err_msg=name)


@algorithms
@pytest.mark.parametrize("total", [25, 30])
def test_a_run_ends_with_the_rollout_that_holds_its_last_step(algorithm: str, total: int) -> None:
    pace = make(algorithm, total_steps=total).training.pace
    assert pace.end(total) == 30
    assert pace.planned(total) == 3 * TURN
    beside = make(algorithm, num_envs=5, collectors=2, total_steps=total).training.pace
    assert beside.end(total) == {"ppo": 25 if total == 25 else 50, "appo": 30}[algorithm]  # shares of 3 and 2


def test_a_rollout_that_is_begun_is_unfinished_until_it_is_whole() -> None:
    agent, rng = make(), np.random.default_rng(0)
    assert not agent.experience.unfinished
    for number in range(5):
        step(agent, rng)
        assert agent.experience.unfinished == (number < 4)


@algorithms
def test_the_first_rollout_is_learned_from_by_statistics_of_its_own(algorithm: str) -> None:
    agent, rng = make(algorithm, normalise_observations=True), np.random.default_rng(0)
    for _ in range(5):
        step(agent, rng, obs=rng.normal(500.0, 20.0, (2, 3)).astype(np.float32))
    seen, learn_rollout = [], agent.learner.learn_rollout

    def watched(rollout: Any, *others: Any) -> int:
        seen.append(agent.learner._preprocessed("obs", rollout.columns["obs"]))
        return learn_rollout(rollout, *others)

    agent.learner.learn_rollout = watched
    agent.training.learn(TURN)
    np.testing.assert_allclose(seen[0].mean((0, 1)), 0.0, atol=1e-3)
    np.testing.assert_allclose(seen[0].std((0, 1)), 1.0, atol=1e-3)
    assert float(agent.learner.observations.count) == 10
