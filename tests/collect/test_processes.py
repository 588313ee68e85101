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
from collectors import collect, collect_each, columns, settle, start, weights
from logged import compare, make, read_log
from offbeat.collect.shards import ShardPlace, ShardProcesses
from offbeat.envs import make_vector
from offbeat.types import EnvSpec
from patience import wait_until


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> EnvSpec:
    return make_vector(make, 1, env_kwargs={"log_dir": str(tmp_path_factory.mktemp("spec"))}).spec


class Killer:
    """Kills a collector now and then, once each of them has collected something since it was started."""

    def __init__(self, places: list[ShardPlace], kills: int, seconds: float) -> None:
        self._places, self._seconds, self.left = places, seconds, kills
        self._random, self._next = random.Random(0), time.monotonic() + seconds
        self._killed: set[int] = set()
        self.lost = 0

    def __call__(self) -> None:
        if self.left and time.monotonic() >= self._next:
            place = self._random.choice(self._places)
            pid = place.child.pid
            if pid is not None and pid not in self._killed and place.shard.committed > place.began:
                os.kill(pid, signal.SIGKILL)
                self._killed.add(pid)
                self.left -= 1
                self.lost += place.num_envs
                self._next = time.monotonic() + self._seconds


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("collectors", [1, 2, 4])
def test_no_row_is_lost_torn_doubled_or_from_another_episode(collectors: int, spec: EnvSpec, tmp_path: Path) -> None:
    rows = soak.count(1_000_000)
    capacity = collectors * (rows + 16 * 64)  # a busy machine may leave nearly all of the work to one
    processes, places = start(
        make, spec, collectors=collectors, num_envs=16, capacity=capacity, collect_ahead=64, log_dir=str(tmp_path)
    )
    try:
        collect(processes, rows)
        settle(processes, places)
        assert [place.shard.oldest for place in places] == [0] * collectors, "a shard was too small for this"
        assert compare([columns(place) for place in places], read_log(tmp_path), run_seed=3) == 0
        assert processes.steps == sum(place.shard.committed for place in places) >= rows
    finally:
        processes.close()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_killed_collectors_are_replaced_and_no_published_row_is_lost(spec: EnvSpec, tmp_path: Path) -> None:
    kills, notes = soak.count(100), []
    processes, places = start(
        make, spec, collectors=2, num_envs=6, capacity=4_000_000, note=notes.append, log_dir=str(tmp_path)
    )
    killer = Killer(places, kills, seconds=1.0 if soak.FULL else 0.5)
    try:
        while killer.left:
            collect(processes, processes.steps + 1_000, killer)
        collect_each(processes, places, 100)
        settle(processes, places)
        missing = compare([columns(place) for place in places], read_log(tmp_path), run_seed=3)
        assert 0 <= missing <= killer.lost, "more is missing than the steps that the killed were in"
        assert processes.restarts == kills
        assert sum("SIGKILL" in note for note in notes) == kills
    finally:
        processes.close()


def test_a_death_is_counted_after_the_rows_before_it_though_nobody_has_taken_them_in(
    spec: EnvSpec, tmp_path: Path
) -> None:
    """Otherwise one that had collected would end the run, and one that had not would go on once too often."""
    notes: list[str] = []
    processes, [place] = start(
        make,
        spec,
        collectors=1,
        num_envs=1,
        capacity=1_000,
        most_deaths=2,
        note=notes.append,
        log_dir=str(tmp_path),
    )
    try:
        place.child.deaths_in_a_row = 1
        processes.allow(10)
        wait_until(lambda: place.committed > place.began, "nothing was collected")
        assert place.child.pid is not None
        os.kill(place.child.pid, signal.SIGKILL)
        wait_until(lambda: not place.child.alive, "it lives")
        taken: list[object] = []

        def noticed_and_taken() -> bool:
            taken.extend(processes.take())
            return bool(notes and taken)

        wait_until(noticed_and_taken, "its death or its rows were not noticed")
        assert place.child.deaths_in_a_row == 1
    finally:
        processes.close()


def test_weights_reach_collectors_and_rows_bear_their_version(spec: EnvSpec, tmp_path: Path) -> None:
    processes, places = start(make, spec, collectors=2, num_envs=4, capacity=10_000, log_dir=str(tmp_path))
    try:
        for version in (5, 9, 12):
            processes.load(weights(version), version)
            before = [place.shard.committed for place in places]
            collect(processes, processes.steps + 100)
            settle(processes, places)
            for place, start_row in zip(places, before, strict=True):
                assert set(columns(place)["version"][start_row:]) == {version}
        assert processes.published_at(9) < processes.published_at(12)
        assert processes.published_at(77) is None
    finally:
        processes.close()


def test_nobody_collects_beyond_what_is_allowed(spec: EnvSpec, tmp_path: Path) -> None:
    processes, places = start(
        make, spec, collectors=2, num_envs=6, capacity=10_000, collect_ahead=3, log_dir=str(tmp_path)
    )
    try:
        processes.allow(0)
        settle(processes, places)
        assert processes.steps == 3  # one vector step of one collector: with that, there are more than 0
        processes.allow(10**9)
        settle(processes, places)
        assert processes.steps == 3 + 2 * 3 * 3  # collect_ahead vector steps of each
        time.sleep(0.1)
        assert processes.take() == []
        waited = processes.collectors_waited
        time.sleep(0.1)
        processes.allow(10**9)
        settle(processes, places)
        assert processes.collectors_waited > waited
    finally:
        processes.close()


def test_a_collector_loads_no_torch(spec: EnvSpec, tmp_path: Path) -> None:
    processes, places = start(make, spec, collectors=1, num_envs=1, capacity=1_000, log_dir=str(tmp_path))
    try:
        collect(processes, 1)
        maps = Path(f"/proc/{places[0].child.pid}/maps").read_text()
        command = Path(f"/proc/{places[0].child.pid}/cmdline").read_text()
    finally:
        processes.close()
    assert "libtorch" not in maps
    assert "numpy" in maps
    assert "collector" in command


def test_a_stopped_collector_goes_on_where_it_was(spec: EnvSpec, tmp_path: Path) -> None:
    processes, places = start(make, spec, collectors=2, num_envs=4, capacity=20_000_000, log_dir=str(tmp_path))
    try:
        collect(processes, 500)
        pid = places[0].child.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        before = places[0].shard.committed
        collect_each(processes, places[1:], 100_000 if soak.FULL else 5_000)
        assert places[0].shard.committed <= before + 8 * 2
        os.kill(pid, signal.SIGCONT)
        collect_each(processes, places, 500)
        settle(processes, places)
        assert places[0].child.pid == pid
        assert processes.restarts == 0
        assert compare([columns(place) for place in places], read_log(tmp_path), run_seed=3) == 0
    finally:
        processes.close()


def test_nothing_is_left_when_collectors_are_closed(spec: EnvSpec, tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    processes, places = start(make, spec, collectors=2, num_envs=2, capacity=1_000, log_dir=str(tmp_path))
    collect(processes, 10)
    pids = [place.child.pid for place in places]
    processes.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) <= before


def test_a_snapshot_is_a_cut_from_which_the_same_rows_follow(spec: EnvSpec, tmp_path: Path) -> None:
    """One goes on after its snapshot; another begins from it, and collects the same."""
    options = {"collectors": 2, "num_envs": 4, "capacity": 1_000_000}
    processes, places = start(make, spec, **options, log_dir=str(tmp_path), numbered=False)
    try:
        collect(processes, 200)
        arrays, values, _ = processes.snapshot()
        ends = processes.ends
        assert [own["rows"] for own in values["collectors"]] == list(ends.values())
        kept = [place.shard.read(0, ends[str(place.worker)]) for place in places]
        collect_each(processes, places, 100)
        settle(processes, places)
        straight = [columns(place) for place in places]
    finally:
        processes.close()
    other = tmp_path / "other"
    other.mkdir()
    resumed, places = start(make, spec, **options, log_dir=str(other), numbered=False, begin=False)
    try:
        for place, chunk in zip(places, kept, strict=True):
            place.shard.restore([chunk])
        assert resumed.restore(arrays, values) == []
        resumed.load(weights(0), 0)
        collect_each(resumed, places, 100)
        settle(resumed, places)
        for place, rows in zip(places, straight, strict=True):
            mine = columns(place)
            length = min(len(mine["step"]), len(rows["step"]))
            assert length >= ends[str(place.worker)] + 100
            for name in rows:
                np.testing.assert_array_equal(mine[name][:length], rows[name][:length])
    finally:
        resumed.close()


def test_the_learner_waits_no_longer_than_it_says(spec: EnvSpec, tmp_path: Path) -> None:
    processes: ShardProcesses
    processes, _ = start(make, spec, collectors=1, num_envs=1, capacity=1_000, log_dir=str(tmp_path))
    try:
        begun = time.monotonic()
        assert processes.take(0.2) == []
        assert 0 < processes.waited <= time.monotonic() - begun
    finally:
        processes.close()
