"""Drawn sequences: consecutive rows of one environment, with flags and states that say where an episode begins."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from test_uniform import assert_uniform

import sequence_log
import soak
from offbeat.errors import UsageError
from offbeat.memory import Memory
from offbeat.replay.environment_rows import EnvironmentRows
from offbeat.replay.sequences import SequenceReplay
from offbeat.replay.settings import Sequences
from offbeat.replay.shard import Shard
from offbeat.replay.transitions import WORKER_SHIFT, split_keys
from offbeat.types import Array, Chunk, Schema
from rows import Counting
from sequence_log import PACKED, SCHEMA, SETTINGS, Log, check, filled, log_of, lossy, over, with_carry


def possible_starts(shard: Shard, log: Log, length: int) -> list[int]:
    """By counting the rows of each environment that are held."""
    held = np.arange(shard.oldest, shard.committed)
    return [row for row in held if np.count_nonzero(log.env[row : shard.committed] == log.env[row]) >= length]


@pytest.mark.parametrize(("burn_in", "n"), [(0, 1), (3, 1), (0, 3), (2, 4)])
@pytest.mark.parametrize("envs", [1, 5])
def test_every_sequence_is_in_the_log(envs: int, burn_in: int, n: int) -> None:
    settings = replace(SETTINGS, n_step=n, sequences=Sequences(6, burn_in))
    model, chunks = lossy(envs, 3, 600)
    shard = Shard(SCHEMA, 400)
    replay, rng = over(shard, settings=settings), np.random.default_rng(1)
    log = log_of(model)
    for chunk in chunks:
        shard.write(chunk)
        if replay.ready():
            first = check(replay.draw(rng, 3), [log], settings)
            assert (first >= shard.oldest).all()


@pytest.mark.parametrize("share", [1.0, 0.7])
@pytest.mark.parametrize("steps", [30, 150])
def test_every_possible_start_is_equally_likely(steps: int, share: float) -> None:
    shard, model = filled(100, steps, envs=3, share=share)
    replay = over(shard, settings=replace(SETTINGS, batch_size=60_000, sequences=Sequences(4)))
    rows = replay.draw(np.random.default_rng(0), 1).rows[0, :60_000]
    starts = possible_starts(shard, log_of(model), 4)
    assert set(rows) == set(starts)
    assert_uniform(np.bincount(rows - shard.oldest)[np.array(starts) - shard.oldest])


def test_shards_share_in_proportion_to_their_possible_starts() -> None:
    (first, one), (second, two) = filled(50, 170), filled(100, 40, envs=2, seed=1, share=0.8)
    empty, short = Shard(SCHEMA, 30), filled(30, 3)[0]
    settings = replace(SETTINGS, batch_size=50_000, sequences=Sequences(5))
    replay = over(first, empty, second, short, settings=settings)
    assert len(replay) == 50 + second.size + 3
    batches = replay.draw(np.random.default_rng(0), 1)
    worker, row = split_keys(batches.rows[0, :50_000])
    starts = possible_starts(first, log_of(one), 5), possible_starts(second, log_of(two), 5)
    assert len(starts[0]) == 46
    counts = [np.bincount(row[worker == index])[held] for index, held in zip((0, 2), starts, strict=True)]
    assert_uniform(np.concatenate(counts))
    assert set(worker) == {0, 2}
    small = over(first, second, settings=replace(SETTINGS, n_step=3))
    check(small.draw(np.random.default_rng(1), 20), [log_of(one), log_of(two)], small.settings)


def test_a_sequence_goes_on_over_the_end_of_an_episode_and_is_broken_there() -> None:
    shard, model = filled(40, 40, end=0.5)
    batches = over(shard).draw(np.random.default_rng(0), 1)
    packed = batches.columns["obs"][0]
    begins = packed[..., 2] == 0
    assert (packed[0, :, 3] == 1).all()
    np.testing.assert_array_equal(packed[1:, :, 3], begins[1:])
    assert begins[1:].any()
    check(batches, [log_of(model)], SETTINGS)


def test_a_lost_step_breaks_a_sequence_and_ends_an_n_step_sum() -> None:
    model, shard = Counting(1, end=0.0), Shard(SCHEMA, 40)
    shard.write(with_carry(model.chunk(4)))
    model.step[0] += 1  # a step that never arrived
    shard.write(with_carry(model.chunk(4)))
    settings = replace(SETTINGS, n_step=3, batch_size=4, sequences=Sequences(6))
    batches = over(shard, settings=settings).draw(np.random.default_rng(0), 1)
    assert batches.columns["obs"][0, :, :, 3].all(1).tolist() == [1, 0, 0, 0, 1, 0]
    assert (batches.columns["next_obs"][0, :6, :, -1] == [[2], [2], [1], [0], [2], [2]]).all()
    check(batches, [log_of(model)], settings)


def test_nothing_can_be_drawn_before_an_environment_has_enough_rows() -> None:
    shard = Shard(SCHEMA, 100)
    replay = over(shard, settings=replace(SETTINGS, n_step=3))
    model = Counting(2)
    for step in range(12):
        assert replay.ready() is (step >= 10)
        if not replay.ready():
            with pytest.raises(UsageError, match=r"sequence_length=6 and burn_in=2 and n_step=3 need 10"):
                replay.draw(np.random.default_rng(0), 1)
        shard.write(with_carry(model.chunk(1)))
    check(replay.draw(np.random.default_rng(0), 1), [log_of(model)], replay.settings)


def test_capacity_must_hold_a_sequence_of_each_environment() -> None:
    replay = SequenceReplay(SCHEMA, replace(SETTINGS, capacity=80, n_step=3))
    assert replay.plan(0, 4, 8).capacity == 40
    with pytest.raises(UsageError, match=r"capacity=80 keeps 8 steps of each of 9 .* need 10: .* at least 90"):
        replay.plan(0, 4, 9)


def test_without_a_stored_state_only_observations_and_flags_are_packed() -> None:
    schema = Schema(tuple(field for field in SCHEMA if field.name != "carry"))
    (stored, _), bare = filled(60, 50), Shard(schema, 60)
    bare.write(Chunk(dict(stored.read(0, 50).columns)))
    replay = SequenceReplay(schema, SETTINGS)
    replay.attach(bare)
    with_state, without = (each.draw(np.random.default_rng(0), 2).columns for each in (over(stored), replay))
    np.testing.assert_array_equal(without["obs"], with_state["obs"][..., :4])
    np.testing.assert_array_equal(without["next_obs"][..., :4], with_state["next_obs"][..., :4])
    np.testing.assert_array_equal(without["next_obs"][..., 4:], with_state["next_obs"][..., PACKED:])


def test_settings_must_say_how_long_sequences_are() -> None:
    with pytest.raises(ValueError, match="Sequences"):
        SequenceReplay(SCHEMA, replace(SETTINGS, sequences=None))


class Overtaken(Shard):
    """Its writer is fast: it writes over the oldest rows while a column is read for the n-th time."""

    def __init__(self, when: int, rows: int) -> None:
        super().__init__(SCHEMA, 40)
        self.model, self.reads, self.when, self.written = Counting(3, share=0.7), 0, when, rows
        self.write(with_carry(self.model.chunk(30)))

    def column(self, name: str) -> Array:
        self.reads += 1
        if self.reads == self.when:
            self.write(with_carry(self.model.chunk(self.written)))
        return super().column(name)


@pytest.mark.parametrize("rows", [3, 15, 60])
@pytest.mark.parametrize("when", [1, 2, 3, 4, 6, 9, 12])
def test_sequences_that_are_overwritten_while_they_are_read_are_drawn_again(when: int, rows: int) -> None:
    shard = Overtaken(when, rows)
    batches = over(shard).draw(np.random.default_rng(0), 4)
    assert shard.reads >= shard.when
    first = check(batches, [log_of(shard.model)], SETTINGS)
    assert first.min() >= shard.oldest > 0


def test_rows_that_a_slow_reader_never_saw_are_not_linked_over() -> None:
    shard, model = filled(40, 15, envs=2)
    replay, rng = over(shard), np.random.default_rng(0)
    replay.draw(rng, 1)
    for steps in (10, 55, 20, 3, 100):
        shard.write(with_carry(model.chunk(steps)))
        first = check(replay.draw(rng, 4), [log_of(model)], SETTINGS)
        assert first.min() >= shard.oldest


def test_more_environments_may_join() -> None:
    shard, order = Shard(SCHEMA, 1_000), None
    order = EnvironmentRows(shard, 3)
    model = Counting(200)
    chunk = model.chunk(3).columns
    for lowest in (0, 100):
        mine = (chunk["env"] >= lowest) & (chunk["env"] < lowest + 100)
        shard.write(with_carry(Chunk({name: column[mine] for name, column in chunk.items()})))
        order.update()
    starts = np.arange(600)
    assert np.flatnonzero(order.can_begin(starts)).tolist() == [*range(100), *range(300, 400)]
    assert order.runs(np.array([0, 399])).tolist() == [[0, 399], [100, 499], [200, 599]]


def test_a_row_that_is_being_written_is_in_no_sequence() -> None:
    shard, _ = filled(12, 12)
    shard._cursors[1] += 3  # the writer has announced rows 12 to 14 and has not committed them
    rows = over(shard, settings=replace(SETTINGS, sequences=Sequences(6))).draw(np.random.default_rng(0), 20).rows
    assert set(rows.ravel()) == set(range(3, 12))


@pytest.mark.parametrize("n", [1, 3])
def test_a_restored_ring_gives_the_same_sequences(n: int) -> None:
    settings = replace(SETTINGS, n_step=n)
    shard, model = filled(60, 50, envs=2, share=0.8)
    other, later = Shard(SCHEMA, 60), filled(60, 50, seed=9)[0]
    replay, again = over(shard, settings=settings), over(later, settings=settings)
    replay.draw(np.random.default_rng(5), 1)
    again.draw(np.random.default_rng(5), 1)  # it has seen other rows before
    held = shard.read(shard.oldest, shard.committed)
    later.restore([held])
    other.restore([held])
    fresh = over(other, settings=settings)
    fresh.restore(replay.arrays())
    for _ in range(2):
        drawn = [each.draw(np.random.default_rng(7), 3) for each in (replay, again, fresh)]
        for batches in drawn[1:]:
            np.testing.assert_array_equal(batches.rows, drawn[0].rows)
            for name, column in drawn[0].columns.items():
                np.testing.assert_array_equal(batches.columns[name], column)
        more = with_carry(model.chunk(5))
        for each in (shard, later, other):
            each.write(more)


def test_several_batches_at_once_are_those_that_would_be_drawn_one_by_one() -> None:
    replay = over(filled(60, 50, envs=2)[0], filled(60, 70, seed=1)[0], settings=replace(SETTINGS, n_step=2))
    one_by_one, together = (np.random.default_rng(3) for _ in range(2))
    several = replay.draw(together, 4)
    for index in range(4):
        single = replay.draw(one_by_one, 1)
        np.testing.assert_array_equal(several.rows[index], single.rows[0])
        for name, column in single.columns.items():
            np.testing.assert_array_equal(several.columns[name][index], column[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 3])
def test_discounts_and_sums_have_the_precision_that_is_asked_for(n: int, dtype: type[np.floating]) -> None:
    settings = replace(SETTINGS, n_step=n, gamma=0.99, dtype=dtype)
    columns = over(filled(50, 50)[0], settings=settings).draw(np.random.default_rng(0), 4).columns
    assert columns["discount"].dtype == dtype
    found = columns["discount"][columns["discount"] > 0].astype(np.float64)
    steps = np.round(np.log(found) / np.log(0.99))
    np.testing.assert_allclose(found, 0.99**steps, rtol=np.finfo(dtype).eps)
    assert set(steps) == set(range(1, n + 1))


@pytest.mark.soak
def test_no_sequence_is_torn_while_another_process_writes() -> None:
    """10^6 sequences with `make soak`, over two rings that two processes overwrite a hundred times."""
    wanted, steps = soak.count(1_000_000) // (1 if soak.FULL else 20), soak.count(100_000) // (1 if soak.FULL else 4)
    capacity, envs = 200, 4
    settings = replace(SETTINGS, batch_size=50, n_step=2)
    memories = [Memory.create(Shard.nbytes(SCHEMA, capacity)) for _ in range(2)]
    shards = [Shard(SCHEMA, capacity, buffer=memory.map()) for memory in memories]
    logs = [log_of(lossy(envs, seed, steps)[0]) for seed in range(2)]
    replay, rng, drawn = over(*shards, settings=settings), np.random.default_rng(0), 0
    writers = []
    for seed, memory in enumerate(memories):
        numbers = memory.descriptor, memory.nbytes, capacity, envs, seed, steps
        command = [sys.executable, sequence_log.__file__, *map(str, numbers)]
        writers.append(subprocess.Popen(command, pass_fds=(memory.descriptor,)))
    try:
        while drawn < wanted or any(writer.poll() is None for writer in writers):
            if replay.ready():
                check(replay.draw(rng, 4), logs, settings)
                drawn += 200
        assert [writer.wait() for writer in writers] == [0, 0]
        assert [shard.committed for shard in shards] == [len(log.env) for log in logs]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
        for memory in memories:
            memory.close()


def test_keys_name_their_worker() -> None:
    shards = [filled(60, 50, seed=seed)[0] for seed in range(3)]
    rows = over(*shards).draw(np.random.default_rng(0), 4).rows
    assert {int(worker) for worker in rows.ravel() >> WORKER_SHIFT} == {0, 1, 2}
