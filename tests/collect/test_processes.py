"""Collector processes against the environments' own logs on disk, while they are killed, stopped and hung."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import soak
from collectors import collect, collect_each, columns, publication, settle, start
from counting import make as make_counting
from logged import compare, make, read_log
from offbeat.collect import ChunkLedger
from offbeat.collect.shard_processes import ShardProcesses, ShardSlot
from offbeat.envs import make_vector
from offbeat.types import EnvSpec
from patience import wait_until


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EnvSpec:
    return make_vector(make, 1, env_kwargs={"log_dir": str(tmp_path_factory.mktemp("spec"))}).spec


class Killer:
    """Kills a collector now and then, once each of them has collected something since it was started."""

    def __init__(self, slots: list[ShardSlot], kills: int, seconds: float) -> None:
        self._slots, self._seconds, self.left = slots, seconds, kills
        self._random, self._next = random.Random(0), time.monotonic() + seconds
        self._killed: set[int] = set()
        self.lost = 0

    def __call__(self) -> None:
        if self.left and time.monotonic() >= self._next:
            slot = self._random.choice(self._slots)
            pid = slot.child.pid
            if pid is not None and pid not in self._killed and slot.store.committed > slot.stored_at_start:
                os.kill(pid, signal.SIGKILL)
                self._killed.add(pid)
                self.left -= 1
                self.lost += slot.num_envs
                self._next = time.monotonic() + self._seconds


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("collectors", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_no_row_is_lost_torn_doubled_or_from_another_episode(collectors: int, spec: EnvSpec, tmp_path: Path) -> None:
    rows = soak.count(1_000_000)
    capacity = collectors * (rows + 16 * 64)  # a busy machine may leave nearly all of the work to one
    processes, slots = start(
        make, spec, collectors=collectors, num_envs=16, capacity=capacity, collect_ahead=64, log_dir=str(tmp_path)
    )
    try:
        collect(processes, rows)
        settle(processes, slots)
        assert [slot.store.oldest for slot in slots] == [0] * collectors, "a shard was too small for this"
        assert compare([columns(slot) for slot in slots], read_log(tmp_path), run_seed=3) == 0
        assert processes.polled_rows == sum(slot.store.committed for slot in slots) >= rows
    finally:
        processes.close()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_killed_collectors_are_replaced_and_no_published_row_is_lost(spec: EnvSpec, tmp_path: Path) -> None:
    kills, notes = soak.count(100), []
    processes, slots = start(
        make, spec, collectors=2, num_envs=6, capacity=4_000_000, note=notes.append, log_dir=str(tmp_path)
    )
    killer = Killer(slots, kills, seconds=1.0 if soak.FULL else 0.5)
    try:
        while killer.left:
            collect(processes, processes.polled_rows + 1_000, killer)
        collect_each(processes, slots, 100)
        settle(processes, slots)
        missing = compare([columns(slot) for slot in slots], read_log(tmp_path), run_seed=3)
        assert 0 <= missing <= killer.lost, "more is missing than the steps that the killed were in"
        assert processes.report().restarts == kills
        assert sum("SIGKILL" in note for note in notes) == kills
    finally:
        processes.close()


def test_a_death_is_counted_after_the_rows_before_it_though_nobody_has_taken_them_in(
    spec: EnvSpec, tmp_path: Path
) -> None:
    """Otherwise one that had collected would end the run, and one that had not would go on once too often."""
    notes: list[str] = []
    processes, [slot] = start(
        make,
        spec,
        collectors=1,
        num_envs=1,
        capacity=1_000,
        max_crashes=2,
        note=notes.append,
        log_dir=str(tmp_path),
    )
    try:
        slot.child.starts.crashes_in_a_row = 1
        processes.allow(10)
        wait_until(lambda: slot.stored > slot.stored_at_start, "nothing was collected")
        assert slot.child.pid is not None
        os.kill(slot.child.pid, signal.SIGKILL)
        wait_until(lambda: not slot.child.alive, "it lives")
        taken: list[object] = []

        def noticed_and_taken() -> bool:
            taken.extend(processes.poll(0.0))
            return bool(notes and taken)

        wait_until(noticed_and_taken, "its death or its rows were not noticed")
        assert slot.child.starts.crashes_in_a_row == 1
    finally:
        processes.close()


def test_chunks_name_the_process_that_made_their_rows(spec: EnvSpec, tmp_path: Path) -> None:
    """Rows of a killed process that are polled when another runs already still belong to the killed one."""
    processes, [slot] = start(make, spec, collectors=1, num_envs=2, capacity=1_000, log_dir=str(tmp_path))
    ledger, chunks = ChunkLedger(), []
    try:
        processes.allow(9)
        wait_until(lambda: slot.control.stored_calls == slot.control.permit, "nothing was collected")
        assert slot.child.pid is not None
        os.kill(slot.child.pid, signal.SIGKILL)
        wait_until(lambda: not slot.child.alive, "it is alive")
        wait_until(lambda: (processes._supervise(), slot.child.starts.boots == 2)[1], "it was not started again")
        for allowed in (11, 19):
            processes.allow(allowed)
            wait_until(lambda: slot.control.stored_calls == slot.control.permit, "nothing was collected")
            chunks += processes.poll(0.0)
        assert [(chunk.boot, chunk.sequence, len(chunk)) for chunk in chunks] == [(1, 0, 10), (2, 10, 2), (2, 12, 8)]
        assert all(ledger.accept(chunk) for chunk in chunks)
        assert ledger.lost == 0
    finally:
        processes.close()


def test_more_episodes_than_fit_into_the_ring_may_end_in_one_step() -> None:
    """A worker stores a step only when all of its episodes are sent, and the learner reads them with the rows."""
    envs = 1_500
    processes, slots = start(
        make_counting, make_vector(make_counting, 1).spec, collectors=1, num_envs=envs, capacity=10_000, length=1
    )
    try:
        collect(processes, 2 * envs)
        assert columns(slots[0])["episode"].max() == 1
    finally:
        processes.close()


def test_weights_reach_collectors_and_rows_bear_their_version(spec: EnvSpec, tmp_path: Path) -> None:
    processes, slots = start(make, spec, collectors=2, num_envs=4, capacity=10_000, log_dir=str(tmp_path))
    try:
        for version in (5, 9, 12):
            processes.publish(publication(version))
            before = [slot.store.committed for slot in slots]
            collect(processes, processes.polled_rows + 100)
            settle(processes, slots)
            for slot, start_row in zip(slots, before, strict=True):
                assert set(columns(slot)["version"][start_row:]) == {version}
    finally:
        processes.close()


def test_nobody_collects_beyond_what_is_allowed(spec: EnvSpec, tmp_path: Path) -> None:
    processes, slots = start(
        make, spec, collectors=2, num_envs=6, capacity=10_000, collect_ahead=3, log_dir=str(tmp_path)
    )
    try:
        processes.allow(0)
        settle(processes, slots)
        assert processes.polled_rows == 3  # one vector step of one collector: with that, there are more than 0
        processes.allow(10**9)
        settle(processes, slots)
        assert processes.polled_rows == 3 + 2 * 3 * 3  # collect_ahead vector steps of each
        time.sleep(0.1)
        assert processes.poll(0.0) == []
        waited = processes.report().waits["collectors"]
        time.sleep(0.1)
        processes.allow(10**9)
        settle(processes, slots)
        assert processes.report().waits["collectors"] > waited
    finally:
        processes.close()


def test_a_collector_loads_no_torch(spec: EnvSpec, tmp_path: Path) -> None:
    processes, slots = start(make, spec, collectors=1, num_envs=1, capacity=1_000, log_dir=str(tmp_path))
    try:
        collect(processes, 1)
        maps = Path(f"/proc/{slots[0].child.pid}/maps").read_text()
        command = Path(f"/proc/{slots[0].child.pid}/cmdline").read_text()
    finally:
        processes.close()
    assert "libtorch" not in maps
    assert "numpy" in maps
    assert "collector" in command


def test_a_stopped_collector_goes_on_where_it_was(spec: EnvSpec, tmp_path: Path) -> None:
    processes, slots = start(make, spec, collectors=2, num_envs=4, capacity=20_000_000, log_dir=str(tmp_path))
    try:
        collect(processes, 500)
        pid = slots[0].child.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        before = slots[0].store.committed
        collect_each(processes, slots[1:], 100_000 if soak.FULL else 5_000)
        assert slots[0].store.committed <= before + 8 * 2
        os.kill(pid, signal.SIGCONT)
        collect_each(processes, slots, 500)
        settle(processes, slots)
        assert slots[0].child.pid == pid
        assert processes.report().restarts == 0
        assert compare([columns(slot) for slot in slots], read_log(tmp_path), run_seed=3) == 0
    finally:
        processes.close()


def test_nothing_is_left_when_collectors_are_closed(spec: EnvSpec, tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    processes, slots = start(make, spec, collectors=2, num_envs=2, capacity=1_000, log_dir=str(tmp_path))
    collect(processes, 10)
    pids = [slot.child.pid for slot in slots]
    processes.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) <= before


def test_a_snapshot_is_a_cut_from_which_the_same_rows_follow(spec: EnvSpec, tmp_path: Path) -> None:
    """One goes on after its snapshot; another begins from it, and collects the same."""
    options = {"collectors": 2, "num_envs": 4, "capacity": 1_000_000}
    processes, slots = start(make, spec, **options, log_dir=str(tmp_path), numbered=False)
    try:
        collect(processes, 200)
        state = processes.snapshot()
        arrays, values, ends = state.arrays, state.values, state.ends
        assert [own["rows"] for own in values["collectors"]] == list(ends.values())
        kept = [slot.store.read(0, ends[str(slot.worker)]) for slot in slots]
        collect_each(processes, slots, 100)
        settle(processes, slots)
        straight = [columns(slot) for slot in slots]
    finally:
        processes.close()
    other = tmp_path / "other"
    other.mkdir()
    resumed, slots = start(make, spec, **options, log_dir=str(other), numbered=False, begin=False)
    try:
        for slot, chunk in zip(slots, kept, strict=True):
            slot.store.restore([chunk])
        assert resumed.restore(arrays, values) == []
        resumed.publish(publication(0))
        collect_each(resumed, slots, 100)
        settle(resumed, slots)
        for slot, rows in zip(slots, straight, strict=True):
            mine = columns(slot)
            length = min(len(mine["step"]), len(rows["step"]))
            assert length >= ends[str(slot.worker)] + 100
            for name in rows:
                np.testing.assert_array_equal(mine[name][:length], rows[name][:length])
    finally:
        resumed.close()


def test_the_learner_waits_no_longer_than_it_says(spec: EnvSpec, tmp_path: Path) -> None:
    processes: ShardProcesses
    processes, _ = start(make, spec, collectors=1, num_envs=1, capacity=1_000, log_dir=str(tmp_path))
    try:
        begun = time.monotonic()
        assert processes.poll(0.2) == []
        assert 0 < processes.report().waits["learner"] <= time.monotonic() - begun
    finally:
        processes.close()
