"""Sampling: every held row equally likely, nothing else ever returned."""

from __future__ import annotations

import numpy as np
import pytest

from drawing import Drawn
from offbeat.errors import UsageError
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.transitions import WORKER_SHIFT
from offbeat.replay.uniform import UniformReplay
from offbeat.types import Array, Chunk, Field, Schema
from rows import SCHEMA, Counting
from specs import vector_spec


def filled(capacity: int, steps: int, seed: int = 0, envs: int = 1) -> tuple[Shard, Counting]:
    model, shard = Counting(envs, seed), Shard(SCHEMA, capacity)
    shard.write(model.chunk(steps))
    return shard, model


def assert_uniform(counts: Array) -> None:
    expected = counts.sum() / len(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)  # chi-square: mean k, variance 2k


@pytest.mark.parametrize("steps", [30, 150])
def test_every_held_row_is_equally_likely(steps: int) -> None:
    shard, _ = filled(100, steps)
    rows = Drawn([shard]).sample(np.random.default_rng(0), 200_000).rows
    counts = np.bincount(rows - shard.oldest, minlength=shard.size)
    assert len(counts) == shard.size == min(steps, 100)
    assert_uniform(counts)


@pytest.mark.parametrize("n", [1, 3])
def test_shards_share_in_proportion_to_what_they_hold(n: int) -> None:
    (first, one), (second, two), (third, _) = filled(50, 170), filled(100, 30, 1, envs=2), (Shard(SCHEMA, 5), None)
    uniform = Drawn([first, third, second], n_step=n, gamma=0.9)
    assert len(uniform) == 50 + 0 + 60
    batch = uniform.sample(np.random.default_rng(0), 110_000)
    shard, sequence = batch.rows >> WORKER_SHIFT, batch.rows & ((1 << WORKER_SHIFT) - 1)
    assert set(np.unique(shard)) == {0, 2}
    counts = [np.bincount(sequence[shard == 0] - first.oldest), np.bincount(sequence[shard == 2])]
    assert_uniform(np.concatenate(counts))
    alone = {0: Drawn([first], n_step=n, gamma=0.9), 2: Drawn([second], n_step=n, gamma=0.9)}
    for index in range(200):
        log = one.log if shard[index] == 0 else two.log
        assert tuple(batch.obs[index]) == log[sequence[index]].obs
        assert tuple(batch.action[index]) == pytest.approx(log[sequence[index]].action)
    for which, uniform in alone.items():  # the same rows drawn from one shard have the same n-step sums
        mine = uniform.sample(np.random.default_rng(1), 5_000)
        by_row = dict(
            zip(mine.rows, zip(mine.reward, mine.discount, map(tuple, mine.next_obs), strict=True), strict=True)
        )
        for index in np.flatnonzero(shard == which)[:200]:
            found = batch.reward[index], batch.discount[index], tuple(batch.next_obs[index])
            assert found == by_row[sequence[index]]


def test_discount_is_gamma_unless_the_row_terminated() -> None:
    shard, model = filled(100, 100)
    batch = Drawn([shard], gamma=0.9).sample(np.random.default_rng(0), 500)
    expected = [0.0 if model.log[row].terminated else np.float32(0.9) for row in batch.rows]
    np.testing.assert_array_equal(batch.discount, expected)
    assert {array.dtype for array in (batch.obs, batch.action, batch.reward, batch.discount)} == {np.dtype(np.float32)}


def test_the_batch_is_one_gather_and_belongs_to_the_caller() -> None:
    shard, _ = filled(100, 100)
    uniform, rng = Drawn([shard]), np.random.default_rng(0)
    batch = uniform.sample(rng, 16)
    assert batch.obs.base is batch.next_obs.base is batch.action.base is not None
    before = batch.obs.copy()
    uniform.sample(rng, 16)
    shard.write(Counting(1, seed=5).chunk(100))
    np.testing.assert_array_equal(batch.obs, before)


def test_privileged_state_is_sampled_where_there_is_one_and_empty_where_not() -> None:
    shard, model = filled(10, 10)
    without = Drawn([shard]).sample(np.random.default_rng(0), 4)
    assert without.state.shape == without.next_state.shape == (4, 0)
    schema = Schema.transitions(vector_spec(observation=3, action=2, state=2))
    chunk = model.chunk(6)
    state = np.arange(12.0).reshape(6, 2)
    with_state = Shard(schema, 10)
    with_state.write(Chunk({**chunk.columns, "state": state, "next_state": state + 100}))
    batch = Drawn([with_state]).sample(np.random.default_rng(0), 50)
    np.testing.assert_array_equal(batch.state, state[batch.rows])
    np.testing.assert_array_equal(batch.next_state, state[batch.rows] + 100)


class Overtaken(Shard):
    """Its writer is fast: it writes over the oldest rows while the first gather of a sample is under way."""

    def __init__(self) -> None:
        super().__init__(SCHEMA, 20)
        self.model = Counting(1)
        self.write(self.model.chunk(20))
        self.gathers = 0

    def gather(self, rows: Array) -> Array:
        self.gathers += 1
        if self.gathers == 1:
            self.write(self.model.chunk(10))
        return super().gather(rows)


@pytest.mark.parametrize("beside", [False, True])
def test_rows_that_are_overwritten_during_the_gather_are_drawn_again(beside: bool) -> None:
    shard = Overtaken()
    shards = [filled(5, 5)[0], shard] if beside else [shard]
    batch = Drawn(shards).sample(np.random.default_rng(0), 64)
    assert shard.gathers == 2
    mine = batch.rows >> WORKER_SHIFT == len(shards) - 1
    sequence = batch.rows[mine] & ((1 << WORKER_SHIFT) - 1)
    assert sequence.min() >= shard.oldest == 10
    np.testing.assert_array_equal(batch.obs[mine], [shard.model.log[row].obs for row in sequence])


def test_a_row_that_is_being_written_is_not_sampled() -> None:
    shard, _ = filled(10, 10)
    shard._cursors[1] += 4  # the writer has announced rows 10 to 13 and has not committed them
    rows = Drawn([shard]).sample(np.random.default_rng(0), 2_000).rows
    assert set(rows) == set(range(4, 10))


def test_an_n_step_chain_stops_before_a_row_that_is_not_committed() -> None:
    model, shard = Counting(1, end=0.0), Shard(SCHEMA, 10)
    shard.write(model.chunk(3))
    shard._cursors[2] = 2  # row 2 is linked already, and not committed yet
    batch = Drawn([shard], n_step=3, gamma=0.5).sample(np.random.default_rng(0), 50)
    assert set(batch.rows) == {0, 1}
    assert {tuple(each) for each in batch.next_obs} == {(0, 0, 2)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Drawn([Shard(SCHEMA, 4)], n_step=0), "n_step=0"),
        (lambda: Drawn([Shard(SCHEMA, 4), Shard(Schema((*SCHEMA.fields, Field("x", (), "bool"))), 4)]), "one schema"),
        (lambda: Drawn([Shard(Schema(SCHEMA.fields[1:]), 4)]), "no float32 field 'obs'"),
        (lambda: Drawn([Shard(Schema((*SCHEMA.fields[:4], Field("terminated", (), "int8"))), 4)]), "no bool field"),
    ],
)
def test_what_cannot_be_sampled_is_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_an_empty_replay_is_not_drawn_from() -> None:
    with pytest.raises(UsageError, match="replay is empty"):
        Drawn([Shard(SCHEMA, 4)]).sample(np.random.default_rng(0), 4)


def test_two_shards_of_one_worker_are_refused() -> None:
    replay = Drawn([filled(5, 5)[0]]).replay(1)
    with pytest.raises(ValueError, match="worker 0"):
        replay.attach(Shard(SCHEMA, 5))


def test_a_shard_that_joins_later_is_drawn_from() -> None:
    replay, rng = Drawn([filled(10, 10)[0]]).replay(500), np.random.default_rng(0)
    assert set(replay.draw(rng, 2).rows.flat) == set(range(10))
    joined = Shard(SCHEMA, 10, worker=7)
    joined.write(Counting(1).chunk(5))
    replay.attach(joined)
    assert len(replay) == 15
    assert set(replay.draw(rng, 2).rows.flat) == {*range(10), *((7 << WORKER_SHIFT) + row for row in range(5))}


def test_several_batches_at_once_are_those_that_would_be_drawn_one_by_one() -> None:
    replay = Drawn([filled(50, 70)[0], filled(50, 30, 1)[0]], n_step=3).replay(8)
    one_by_one, together = (np.random.default_rng(3) for _ in range(2))
    several = replay.draw(together, 4)
    for index in range(4):
        single = replay.draw(one_by_one, 1)
        np.testing.assert_array_equal(several.rows[index], single.rows[0])
        for name, column in single.columns.items():
            np.testing.assert_array_equal(several.columns[name][index], column[0])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("shards", [1, 2])
def test_discounts_and_sums_have_the_precision_that_is_asked_for(n: int, shards: int) -> None:
    held, gamma = [filled(50, 40, seed)[0] for seed in range(shards)], 0.99
    for dtype in (np.float32, np.float64):
        batch = Drawn(held, n_step=n, gamma=gamma, dtype=dtype).sample(np.random.default_rng(0), 100)
        found = batch.discount[batch.discount > 0].astype(np.float64)
        steps = np.round(np.log(found) / np.log(gamma))
        np.testing.assert_allclose(found, gamma**steps, rtol=np.finfo(dtype).eps)
        assert set(steps) == set(range(1, n + 1))
        assert batch.discount.dtype == dtype
        if n > 1:
            assert batch.reward.dtype == dtype


@pytest.mark.parametrize("n", [1, 3])
def test_a_batch_carries_further_fields_of_its_first_row_where_asked_for(n: int) -> None:
    shard, _ = filled(200, 150)
    settings = ReplaySettings(200, 64, n_step=n)
    for carry in ((), ("terminated", "truncated", "step")):
        replay = UniformReplay(SCHEMA, settings, carry)
        replay.attach(shard)
        batches = replay.draw(np.random.default_rng(0), 2)
        assert {name for name in ("terminated", "truncated", "step", "env") if name in batches.columns} == set(carry)
        for name in carry:
            wanted = shard.gather(batches.rows.ravel())[name].reshape(batches.rows.shape)
            np.testing.assert_array_equal(batches.columns[name], wanted)


def test_a_field_that_is_not_there_cannot_be_carried() -> None:
    with pytest.raises(ValueError, match="carry='colour'"):
        UniformReplay(SCHEMA, ReplaySettings(10, 4), ("colour",))


def test_without_replacement_a_row_is_in_a_batch_once() -> None:
    shard, _ = filled(20, 20)
    replay = UniformReplay(shard.schema, ReplaySettings(capacity=20, batch_size=16), replacement=False)
    replay.attach(shard)
    drawn = replay.draw(np.random.default_rng(0), 5).rows
    assert drawn.shape == (5, 16)
    assert all(len(set(batch)) == 16 for batch in drawn.tolist())
    assert len(set(drawn.reshape(-1).tolist())) == 20
    larger = UniformReplay(shard.schema, ReplaySettings(capacity=20, batch_size=30), replacement=False)
    larger.attach(shard)
    assert larger.draw(np.random.default_rng(0), 1).rows.shape == (1, 30)  # with fewer rows than a batch, rows repeat
