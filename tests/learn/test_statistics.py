from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driven_learner import Learner
from offbeat.learn.statistics import ReturnScale, RunningMoments
from offbeat.settings import make_learner_config
from offbeat.types import Chunk
from specs import vector_spec


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 1000))
def test_moments_merged_batch_by_batch_equal_those_of_all_rows(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.normal(1e3, 5.0, (size, 3)) for size in sizes]
    moments = RunningMoments(3)
    for batch in batches:
        moments.update(batch)
    rows = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-12)
    if len(rows) > 1:
        np.testing.assert_allclose(moments.scale, 1 / np.sqrt(rows.var(0) + 1e-8), rtol=1e-8)


def _chunk(rewards: list[float], envs: list[int], ended: list[bool], obs: float = 0.0, episode: int = 0) -> Chunk:
    count = len(rewards)
    return Chunk(
        {
            "obs": np.full((count, 5), obs, np.float32),
            "next_obs": np.full((count, 5), obs + 1, np.float32),
            "reward": np.array(rewards, np.float32),
            "terminated": np.array(ended, np.float32),
            "truncated": np.zeros(count, np.float32),
            "env": np.array(envs),
            "episode": np.full(count, episode),
        }
    )


def test_return_scale_is_the_deviation_of_each_environments_discounted_return() -> None:
    scale = ReturnScale(gamma=0.5)
    scale.update(_chunk([1.0, 2.0], [0, 1], [False, True]))
    scale.update(_chunk([1.0, 2.0], [0, 1], [False, False]))
    returns = [1.0, 2.0, 1.0 + 0.5 * 1.0, 2.0]  # environment 1 ended in between and begins again
    assert scale.scale == pytest.approx(1 / np.sqrt(np.var(returns) + 1e-8))


def test_an_episode_that_was_broken_off_is_not_carried_on() -> None:
    scale = ReturnScale(gamma=0.5)
    scale.update(_chunk([1.0], [0], [False]))
    scale.update(_chunk([2.0], [0], [False], episode=1))
    np.testing.assert_allclose(scale.running, [2.0])


def test_several_steps_of_one_environment_in_a_chunk_count_in_their_order() -> None:
    together, apart = ReturnScale(0.9), ReturnScale(0.9)
    together.update(_chunk([1.0, 5.0, 2.0], [0, 1, 0], [False, False, False]))
    for reward, env in ((1.0, 0), (5.0, 1), (2.0, 0)):
        apart.update(_chunk([reward], [env], [False]))
    np.testing.assert_array_equal(together.running, apart.running)
    assert together.scale == pytest.approx(apart.scale)


@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from([0.0, 0.3, 0.9]), st.integers(0, 1000))
def test_a_rollout_at_once_counts_as_its_steps_one_after_the_other(
    steps: int, envs: int, gaps: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    at_once, by_step = ReturnScale(0.9), ReturnScale(0.9)
    for _ in range(3):
        valid, ended = rng.random((steps, envs)) >= gaps, rng.random((steps, envs)) < 0.3
        reward = np.where(valid, rng.standard_normal((steps, envs)), 0.0)
        env = np.where(valid, np.arange(envs), 0)  # what gave no row is zeros, its number, too
        episode = np.where(valid, rng.integers(2, size=(steps, envs)), 0)
        at_once.update_steps(env, episode, reward, ended & valid, valid)
        for t in range(steps):
            which = np.flatnonzero(valid[t])
            chunk = _chunk(reward[t, which].tolist(), which.tolist(), ended[t, which].tolist())
            by_step.update(Chunk({**chunk.columns, "episode": episode[t, which]}))
        running = np.zeros((2, envs))
        for row, scale in zip(running, (at_once, by_step), strict=True):
            row[: len(scale.running)] = scale.running
        np.testing.assert_allclose(*running, rtol=1e-5, atol=1e-6)
        assert at_once.moments.count == by_step.moments.count
        assert at_once.scale == pytest.approx(by_step.scale, rel=1e-5)


def test_an_environment_that_gave_no_row_at_all_leaves_the_others_alone() -> None:
    scale, valid = ReturnScale(0.5), np.array([[True, False], [True, False]])
    zeros = np.zeros((2, 2), np.uint16)
    scale.update_steps(zeros, zeros, np.where(valid, 1.0, 0.0), np.zeros((2, 2), bool), valid)
    np.testing.assert_allclose(scale.running, [1.0 + 0.5 * 1.0])


def test_each_fresh_observation_is_counted_once_and_final_ones_too() -> None:
    learner = Learner(
        "sac",
        make_learner_config("sac", hidden=(8,), normalise_observations=True),
        vector_spec(),
        rng=np.random.default_rng(0),
    )
    learner.observe(_chunk([0.0, 0.0, 0.0], [0, 1, 2], [False, True, False], obs=1.0))
    assert learner.observations is not None
    assert learner.observations.count == 3 + 1
    np.testing.assert_allclose(learner.observations.mean, (3 * 1.0 + 2.0) / 4)
