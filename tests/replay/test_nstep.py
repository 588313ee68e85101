"""n-step returns against a plain loop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import Drawn
from offbeat.replay.nstep import n_step
from offbeat.replay.shard import Shard
from offbeat.types import Chunk, Schema
from rows import SCHEMA, Counting, Row, successor
from specs import choice_spec


def plain_loop(log: list[Row], start: int, steps: int, gamma: float) -> tuple[float, float, Row]:
    total, factor, at = 0.0, 1.0, start
    for step in range(steps):
        row = log[at]
        total += factor * row.reward
        factor *= gamma
        following = successor(log, at)
        if row.terminated or row.truncated or following < 0 or step == steps - 1:
            break
        at = following
    return total, 0.0 if row.terminated else factor, row


@settings(max_examples=60)
@given(
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.sampled_from([0.5, 1.0]),
    st.integers(1, 40),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.9, 1.0]),
)
def test_sampled_transitions_equal_a_plain_loop(
    envs: int, seed: int, share: float, capacity: int, steps: list[int], n: int, gamma: float
) -> None:
    model, shard = Counting(envs, seed, share), Shard(SCHEMA, capacity)
    for count in steps:
        shard.write(model.chunk(count))
    if shard.size == 0:
        return
    batch = Drawn([shard], n_step=n, gamma=gamma).sample(np.random.default_rng(seed), 64)
    for index, row in enumerate(batch.rows):
        total, discount, last = plain_loop(model.log, int(row), n, gamma)
        assert batch.reward[index] == pytest.approx(total, abs=1e-5)
        assert batch.discount[index] == pytest.approx(discount, abs=1e-6)
        assert tuple(batch.obs[index]) == model.log[row].obs
        assert tuple(batch.action[index]) == pytest.approx(model.log[row].action)
        assert tuple(batch.next_obs[index]) == last.next_obs


def test_truncation_bootstraps_but_termination_does_not() -> None:
    reward = np.array([[1.0, 1.0, 1.0], [10.0, 10.0, 10.0], [100.0, 100.0, 100.0]])
    terminated = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]], bool)
    truncated = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], bool)
    total, discount, last = n_step(reward, terminated, truncated, 0.5)
    np.testing.assert_allclose(total, [6.0, 6.0, 31.0])
    np.testing.assert_allclose(discount, [0.0, 0.25, 0.125])
    np.testing.assert_array_equal(last, [1, 1, 2])


def test_rewards_after_the_end_are_not_in_the_sum() -> None:
    reward = np.array([[1.0], [np.nan]], np.float32)
    total, discount, last = n_step(reward, np.array([[1.0], [0.0]]), np.zeros((2, 1)), 0.9)
    assert (total[0], discount[0], last[0]) == (1.0, 0.0, 0)
    assert total.dtype == discount.dtype == np.float32


def test_at_the_write_head_the_sum_is_cut_and_bootstraps() -> None:
    model, shard = Counting(1, end=0.0), Shard(SCHEMA, 10)
    shard.write(model.chunk(2))
    batch = Drawn([shard], n_step=3, gamma=0.5).sample(np.random.default_rng(0), 32)
    discounts = {int(row): float(discount) for row, discount in zip(batch.rows, batch.discount, strict=True)}
    assert discounts == {0: 0.25, 1: 0.5}
    assert {tuple(each) for each in batch.next_obs} == {(0, 0, 2)}


@pytest.mark.parametrize("n", [1, 3])
def test_the_mask_that_bootstraps_is_that_of_the_last_step(n: int) -> None:
    spec = dataclasses.replace(choice_spec(2, 3), mask_key="mask", mask_from="info")
    rng, count, ends = np.random.default_rng(0), 40, np.arange(40) % 7 == 6
    mask, next_mask = rng.random((2, count, 3)) < 0.5
    flags = np.zeros(count, bool)
    columns = {each.name: np.zeros((count, *each.shape)) for each in Schema.transitions(spec)}
    columns |= {"mask": mask, "next_mask": next_mask, "terminated": flags, "truncated": ends}
    columns |= {"episode": np.arange(count) // 7, "step": np.arange(count) % 7}
    shard = Shard(Schema.transitions(spec), count)
    shard.write(Chunk(columns))
    batch = Drawn([shard], n_step=n).sample(rng, 200)
    assert batch.mask is not None
    assert batch.next_mask is not None
    last = np.minimum(np.minimum(batch.rows + n - 1, batch.rows // 7 * 7 + 6), count - 1)
    np.testing.assert_array_equal(batch.mask, mask[batch.rows])
    np.testing.assert_array_equal(batch.next_mask, next_mask[last])
    assert n == 1 or (last > batch.rows).any()
