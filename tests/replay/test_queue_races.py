"""The queue of rollouts under its two sides at once: none is torn, doubled, lost uncounted or out of order."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_writer
import soak
from offbeat.memory import Memory
from offbeat.replay.queue import _BEGUN, Rollout, RolloutQueue, _Slot
from rollout_writer import (
    POLICIES,
    VERSIONS,
    add,
    assert_balanced,
    begin,
    check,
    drain,
    make,
    nbytes,
    sides,
    states,
    step,
)

policies = pytest.mark.parametrize("when_full", POLICIES)
several_slots = pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.slow), 5])


class Words:
    """A queue's words; before each access, something else happens."""

    def __init__(self, queue: RolloutQueue, hook: Callable[[], object]) -> None:
        self._words, self.hook = queue._words, hook
        queue._words = self  # type: ignore[assignment]

    def __getitem__(self, place: int) -> int:
        self.hook()
        return self._words[place]

    def __setitem__(self, place: int, value: int) -> None:
        self.hook()
        self._words[place] = value


class Killed(BaseException):
    pass


def dying_after(accesses: int) -> Callable[[], None]:
    left = iter(range(accesses))

    def hook() -> None:
        if next(left, None) is None:
            raise Killed

    return hook


@policies
@several_slots
def test_a_writer_may_be_killed_before_any_access_to_what_is_shared(when_full: str, slots: int) -> None:
    for moment in itertools.count():
        writer, reader, buffer = sides(slots, when_full)
        words = Words(writer, dying_after(moment))
        numbers: list[int] = []
        try:
            for _ in range(3):
                add(writer)
                if when_full == "block":
                    numbers += drain(reader)
        except Killed:
            pass
        else:
            break
        begun = words._words[_BEGUN]
        replacement = make(slots, when_full, buffer)
        rollout = reader.take()
        if rollout is not None:
            check(rollout)
            numbers.append(rollout.number)
        abandoned = begun - reader.counts().written
        if moment % 2:  # else the next rollout's beginning does it
            replacement.abandon()
            assert reader.counts().abandoned == abandoned
        add(replacement)
        assert reader.counts().abandoned == abandoned
        numbers += drain(reader)
        counts = reader.counts()
        assert_balanced(counts, slots)
        assert numbers == sorted(set(numbers))
        assert len(numbers) == counts.taken == counts.written - counts.dropped
        assert numbers[-1] == counts.written - 1
    assert moment > 30


class Sides:
    """Writer and reader as small steps, and what the reader got."""

    def __init__(self, slots: int, when_full: str) -> None:
        self.slots = slots
        self.writer, self.reader, _ = sides(slots, when_full)
        self.taken: list[int] = []
        self.held: list[Rollout] = []
        self.discarded = 0

    def write(self) -> None:
        """A begin, or a vector step."""
        if self.writer._step is None:
            begin(self.writer)
        else:
            self.writer.write(*step(self.writer.counts().written, self.writer._step))

    def read(self, action: int) -> None:
        assert_balanced(self.reader.counts(), self.slots)
        if action == 0 and self.held:
            check(self.held.pop(0))
        elif action == 1:
            self.discarded += self.reader.discard(older_than=self.reader.counts().taken % 4)
        elif (rollout := self.reader.take()) is not None:
            check(rollout)
            self.taken.append(rollout.number)
            self.held.append(rollout)

    def assert_all_is_accounted_for(self) -> None:
        for rollout in self.held:
            check(rollout)
        counts = self.reader.counts()
        assert_balanced(counts, self.slots)
        self.taken += drain(self.reader)
        assert self.taken == sorted(set(self.taken))
        assert (len(self.taken), self.discarded) == (counts.taken + counts.full, counts.stale)


@settings(max_examples=300)
@given(
    st.sampled_from(POLICIES), st.integers(1, 3), st.lists(st.integers(0, 12), min_size=1), st.lists(st.integers(0, 4))
)
def test_a_writer_may_do_anything_between_two_loads_of_the_reader(
    when_full: str, slots: int, bursts: list[int], actions: list[int]
) -> None:
    both = Sides(slots, when_full)
    steps = itertools.cycle(bursts)
    copy = both.reader._copy

    def go_on() -> None:
        for _ in range(next(steps)):
            both.write()

    def copy_later(slot: _Slot) -> _Slot:
        words.hook()
        return copy(slot)

    words = Words(both.reader, go_on)
    both.reader._copy = copy_later  # type: ignore[method-assign]
    for action in actions:
        both.read(action)
    words.hook = lambda: None
    both.assert_all_is_accounted_for()


@settings(max_examples=300)
@given(st.sampled_from(POLICIES), st.integers(1, 3), st.integers(0, 60), st.lists(st.integers(-3, 4), min_size=1))
def test_a_reader_may_do_anything_between_two_loads_of_the_writer(
    when_full: str, slots: int, writes: int, actions: list[int]
) -> None:
    both = Sides(slots, when_full)
    action = itertools.cycle(actions)
    Words(both.writer, lambda: both.read(each) if (each := next(action)) >= 0 else None)
    for _ in range(writes):
        both.write()
    both.assert_all_is_accounted_for()


@contextmanager
def writing(memory: Memory, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, rollout_writer.__file__, str(memory.descriptor), *map(str, arguments)]
    process = subprocess.Popen(command, pass_fds=(memory.descriptor,), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Reader:
    """Takes rollouts at random moments, keeps some, and checks each when it comes and when it goes."""

    def __init__(self, queue: RolloutQueue, seed: int, *, discards: bool) -> None:
        self.queue, self._rng, self._discards = queue, random.Random(seed), discards
        self.taken = self.stale = self.passed = 0
        self._last = -1
        self._held: list[Rollout] = []

    def look(self) -> None:
        if self._rng.random() < 0.02:
            time.sleep(self._rng.random() * 2e-3)
        if self._discards and self._rng.random() < 0.05:
            self.stale += self.queue.discard(older_than=self._last // VERSIONS + 1)
        if (rollout := self.queue.take()) is not None:
            check(rollout)
            assert rollout.number > self._last, "a rollout came twice, or late"
            self.passed += rollout.number - self._last - 1
            self._last = rollout.number
            self.taken += 1
            self._held.append(rollout)
        else:
            time.sleep(20e-6)
        while len(self._held) > self._rng.randrange(self.queue.slots):
            check(self._held.pop(self._rng.randrange(len(self._held))))
        assert_balanced(self.queue.counts(), self.queue.slots)

    def take_the_rest(self) -> None:
        for _ in range(1_000):
            if self.queue.counts().full:
                self.look()

    def assert_all_is_accounted_for(self) -> None:
        """At the end: whatever did not come was dropped or stale, and counted."""
        self.take_the_rest()
        counts = self.queue.counts()
        self.passed += counts.written - self._last - 1
        assert (counts.taken, counts.stale, counts.full) == (self.taken, self.stale, 0)
        assert counts.dropped + counts.stale == self.passed
        assert counts.written == self.taken + self.passed


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@policies
@several_slots
def test_no_rollout_of_a_racing_writer_is_torn_doubled_or_lost_uncounted(when_full: str, slots: int) -> None:
    rollouts, memory = soak.count(100_000), Memory.create(nbytes(slots))
    reader = Reader(make(slots, when_full, memory.map()), slots, discards=slots == 5)
    with writing(memory, slots, when_full, rollouts, slots, 0.01) as writer:
        while writer.poll() is None:
            reader.look()
        assert writer.returncode == 0, writer.stderr and writer.stderr.read()
    reader.assert_all_is_accounted_for()
    counts = reader.queue.counts()
    assert (counts.written, counts.abandoned) == (rollouts, 0)
    assert counts.taken > 0
    assert counts.dropped == 0 or when_full == "drop-oldest"
    if soak.FULL:  # how often they meet is up to the machine
        assert counts.taken > rollouts // 100, "the reader hardly ever met the writer"
        assert (counts.dropped > 0) == (when_full == "drop-oldest")
    memory.close()


def stopped_while_filling(writer: subprocess.Popen[str], queue: RolloutQueue) -> bool:
    """Stops the writer; lets it go on where it is between two rollouts."""
    writer.send_signal(signal.SIGSTOP)
    os.waitpid(writer.pid, os.WUNTRACED)
    filling = "filling" in states(queue)
    if not filling:
        writer.send_signal(signal.SIGCONT)
    return filling


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@policies
@pytest.mark.parametrize("slots", [1, 3])
def test_a_writer_killed_in_the_middle_leaves_a_slot_to_its_replacement(when_full: str, slots: int) -> None:
    memory, rng = Memory.create(nbytes(slots)), random.Random(slots)
    queue = make(slots, when_full, memory.map())
    reader, abandoned = Reader(queue, slots, discards=False), 0
    for seed in range(soak.count(50)):
        start, more = queue.counts(), rng.randrange(1, 20)
        with writing(memory, slots, when_full, 10**9, seed, 0.9) as writer:
            while writer.poll() is None and queue.counts().written < start.written + more:
                reader.look()
            while writer.poll() is None and not stopped_while_filling(writer, queue):
                reader.look()
            writer.kill()
            writer.wait()
        assert writer.returncode == -9, "the writer did not go on until it was killed"
        assert queue.counts().abandoned == abandoned, "what was left behind is counted when it is reclaimed"
        abandoned += 1
        reader.take_the_rest()
    replacement = make(slots, when_full, memory.map())
    replacement.abandon()
    assert "filling" not in states(queue)
    assert queue.counts().abandoned == abandoned
    assert begin(replacement)
    reader.assert_all_is_accounted_for()
    memory.close()
