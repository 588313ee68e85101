"""The queue of rollouts, one call at a time: every state of a slot, every way out of it, and a model of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offbeat.replay.block import Block
from offbeat.replay.queue import QueueCounts, Rollout, RolloutQueue
from offbeat.types import Chunk, Field, Schema
from rollout_writer import (
    POLICIES,
    SCHEMA,
    STEPS,
    VERSIONS,
    add,
    assert_balanced,
    begin,
    check,
    drain,
    fill,
    make,
    nbytes,
    sides,
    states,
    step,
    take,
)

policies = pytest.mark.parametrize("when_full", POLICIES)
several_slots = pytest.mark.parametrize("slots", [1, 2, 5])


@policies
def test_a_slot_goes_from_free_to_filling_to_full_to_the_reader_and_is_free_again(when_full: str) -> None:
    writer, reader, _ = sides(2, when_full)
    assert states(reader) == ("free", "free")
    assert begin(writer)
    assert states(reader) == ("filling", "free")
    assert reader.take() is None
    fill(writer, STEPS - 1)
    assert states(reader) == ("filling", "free")
    assert reader.take() is None
    writer.write(*step(0, STEPS - 1))
    assert states(reader) == ("full", "free")
    take(reader)
    assert reader.take() is None
    assert states(reader) == states(writer) == ("free", "free")
    assert reader.counts() == QueueCounts(written=1, taken=1, dropped=0, stale=0, full=0, abandoned=0)


@policies
@several_slots
def test_rollouts_come_in_their_order_however_often_the_ring_comes_round(when_full: str, slots: int) -> None:
    writer, reader, _ = sides(slots, when_full)
    for start in range(0, 4 * slots, slots):
        add(writer, slots)
        assert states(reader) == ("full",) * slots
        assert drain(reader) == list(range(start, start + slots))
    assert reader.counts() == QueueCounts(4 * slots, 4 * slots, 0, 0, 0, 0)


@several_slots
def test_block_never_writes_over_what_waits(slots: int) -> None:
    writer, reader, _ = sides(slots, "block")
    add(writer, slots)
    for _ in range(slots):
        assert not begin(writer)
        take(reader)
        add(writer)
    assert not begin(writer)
    assert reader.counts() == QueueCounts(2 * slots, slots, 0, 0, slots, 0)


@several_slots
def test_drop_oldest_writes_over_the_oldest_and_counts_it(slots: int) -> None:
    writer, reader, _ = sides(slots, "drop-oldest")
    add(writer, slots)
    assert begin(writer)
    assert reader.counts() == QueueCounts(slots, 0, 1, 0, slots - 1, 0)
    assert states(reader) == ("filling", *["full"] * (slots - 1))
    fill(writer)
    add(writer, 10)
    assert reader.counts() == QueueCounts(slots + 11, 0, 11, 0, slots, 0)
    assert drain(reader) == list(range(11, slots + 11))
    assert reader.counts() == QueueCounts(slots + 11, slots, 11, 0, 0, 0)


@policies
def test_a_rollout_that_was_taken_stays_as_it_is_while_the_writer_goes_on(when_full: str) -> None:
    writer, reader, buffer = sides(3, when_full)
    add(writer, 2)
    first, second = take(reader), take(reader)
    assert not np.shares_memory(first.rows, np.frombuffer(buffer, np.uint8))
    for _ in range(7):
        add(writer)
        assert reader.take() is not None
    check(first)
    check(second)


@policies
def test_rollouts_of_old_versions_are_discarded_and_counted(when_full: str) -> None:
    writer, reader, _ = sides(9, when_full)
    add(writer, 9)  # versions 0, 0, 0, 1, 1, 1, 2, 2, 2
    used = take(reader)
    assert reader.discard(older_than=0) == 0
    assert reader.discard(older_than=2) == 5
    assert reader.counts() == QueueCounts(9, 1, 0, 5, 3, 0)
    assert begin(writer)
    check(used)
    assert drain(reader) == [6, 7, 8]
    assert reader.discard(older_than=100) == 0
    assert_balanced(reader.counts(), 9)


@policies
@several_slots
def test_what_a_writer_gave_up_is_free_again_and_counted_once(when_full: str, slots: int) -> None:
    writer, reader, buffer = sides(slots, when_full)
    add(writer, 7 if when_full == "drop-oldest" else slots - 1)
    written = writer.counts().written
    for deaths in range(1, 4):
        assert begin(writer)
        writer.write(*step(999, 0))
        place = states(reader).index("filling")
        if deaths == 2:
            writer.abandon()
            writer.abandon()
        else:
            writer = make(slots, when_full, buffer)
            assert not writer.filling
            writer.abandon()
        assert states(reader)[place] == "free"
        assert reader.counts().abandoned == deaths
        assert_balanced(reader.counts(), slots)
    add(writer)
    assert drain(reader) == list(range(written + 1 - min(written + 1, slots), written + 1))
    assert_balanced(reader.counts(), slots)


def test_half_a_rollout_cannot_be_published_nor_a_second_one_begun() -> None:
    writer = make(2)
    assert begin(writer)
    with pytest.raises(RuntimeError, match="already"):
        begin(writer)
    writer.write(*step(0, 0))
    assert writer.take() is None
    for index in (1, 2):
        writer.write(*step(0, index))
    assert not writer.filling
    assert drain(writer) == [0]


def test_the_first_step_begins_a_rollout_where_there_is_room() -> None:
    writer = make(1)
    for index in range(STEPS):
        assert writer.write(*step(0, index), version=0) == step(0, index)[1].sum()
    assert not writer.ready(permit=5, calls=0)
    with pytest.raises(RuntimeError, match="full"):
        writer.write(*step(1, 0), version=0)
    assert drain(writer) == [0]
    assert [writer.ready(permit, calls=0) for permit in (1, 2)] == [False, True]


def test_calls_that_gave_no_row_are_zeros_and_not_what_stood_there_before() -> None:
    writer, reader, _ = sides(1, "block")
    add(writer, 1)
    drain(reader)
    assert writer.begin(5)
    kept = np.array([[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    for row in kept:
        columns = {each.name: np.full((row.sum(), *each.shape), 6, each.dtype) for each in SCHEMA}
        writer.write(Chunk(columns), row)
    rollout = reader.take()
    assert rollout is not None
    assert (rollout.number, rollout.version) == (1, 5)
    np.testing.assert_array_equal(rollout.valid, kept)
    np.testing.assert_array_equal(rollout.rows["reward"], 6.0 * kept)
    np.testing.assert_array_equal(rollout.columns["beside"][..., 2, 4], 6 * kept)


def test_packed_rows_are_written_as_they_are_in_time_major_order() -> None:
    schema = Schema((Field("obs", (2,), "float32"), Field("env", (), "uint16")))
    queue, block = RolloutQueue(schema, 4, 3, 2), Block(schema, 3)
    block.columns["env"][...] = range(3)
    assert queue.begin(0)
    for index in range(4):
        block.columns["obs"][...] = index
        kept = np.array([True, index != 2, True])
        queue.write(Chunk(block.rows(None if kept.all() else kept)), kept)
    rollout = queue.take()
    assert rollout is not None
    assert rollout.rows.shape == rollout.valid.shape == (4, 3)
    np.testing.assert_array_equal(rollout.columns["env"], [[0, 1, 2], [0, 1, 2], [0, 0, 2], [0, 1, 2]])
    np.testing.assert_array_equal(rollout.columns["obs"][:, 2, 0], range(4))
    np.testing.assert_array_equal(rollout.valid.sum(1), [3, 3, 2, 3])


@pytest.mark.parametrize(
    ("rows", "kept", "words"),
    [
        (3, None, "3 rows, but 4 of 4 environments are valid"),
        (4, [True, True, True, False], "4 rows, but 3 of 4 environments are valid"),
        (3, [True, True, True], r"`valid` of shape \(4,\)"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_before_any_row_changes(rows: int, kept: Any, words: str) -> None:
    queue = make(1)
    assert begin(queue)
    wrong = Chunk({each.name: np.ones((rows, *each.shape), each.dtype) for each in SCHEMA})
    with pytest.raises(ValueError, match=words):
        queue.write(wrong, None if kept is None else np.array(kept))
    fill(queue)
    assert drain(queue) == [0]


def test_a_queue_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="slots=0"):
        make(0)
    with pytest.raises(ValueError, match="steps=0"):
        RolloutQueue(SCHEMA, 0, 1, 1)
    with pytest.raises(ValueError, match=r"'drop'.*block, drop-oldest"):
        make(1, "drop")
    with pytest.raises(ValueError, match="read-only"):
        make(1, buffer=bytes(nbytes(1)))


class Model(RuleBasedStateMachine):
    """The queue against lists: any order of what the two sides may do, and the writer's death at any point."""

    @initialize(slots=st.integers(1, 4), when_full=st.sampled_from(POLICIES))
    def start(self, slots: int, when_full: str) -> None:
        self.slots, self.when_full = slots, when_full
        self.writer, self.reader, self.buffer = sides(slots, when_full)
        self.full: list[int] = []
        self.held: list[Rollout] = []
        self.step: int | None = None
        self.written = self.taken = self.dropped = self.stale = self.abandoned = 0

    @precondition(lambda self: self.step is None)
    @rule()
    def begin(self) -> None:
        room = len(self.full) < self.slots
        assert begin(self.writer) == (room or self.when_full == "drop-oldest")
        if not room and self.when_full == "drop-oldest":
            self.full.pop(0)
            self.dropped += 1
        if room or self.when_full == "drop-oldest":
            self.step = 0

    @precondition(lambda self: self.step is not None)
    @rule()
    def go_on(self) -> None:
        assert self.step is not None
        self.writer.write(*step(self.written, self.step))
        self.step += 1
        if self.step == STEPS:
            self.full.append(self.written)
            self.written, self.step = self.written + 1, None

    @rule(killed=st.booleans())
    def give_up(self, killed: bool) -> None:
        if killed:
            self.writer = make(self.slots, self.when_full, self.buffer)
        self.writer.abandon()
        self.abandoned, self.step = self.abandoned + (self.step is not None), None

    @rule()
    def take(self) -> None:
        rollout = self.reader.take()
        assert (rollout is None) == (not self.full)
        if rollout is not None:
            assert rollout.number == self.full.pop(0)
            self.held.append(rollout)
            self.taken += 1

    @rule(version=st.integers(0, 8))
    def discard(self, version: int) -> None:
        old = [number for number in self.full if number // VERSIONS < version]
        assert self.reader.discard(older_than=version) == len(old)
        self.full, self.stale = self.full[len(old) :], self.stale + len(old)

    @invariant()
    def agree(self) -> None:
        for rollout in self.held:
            check(rollout)
        assert self.reader.counts() == QueueCounts(
            self.written, self.taken, self.dropped, self.stale, len(self.full), self.abandoned
        )
        assert_balanced(self.reader.counts(), self.slots)
        expected = ["free"] * self.slots
        for number in self.full:
            expected[number % self.slots] = "full"
        if self.step is not None:
            expected[self.written % self.slots] = "filling"
        assert states(self.reader) == states(self.writer) == tuple(expected)

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            assert drain(self.reader) == self.full


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=60)
