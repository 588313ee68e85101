"""One suite for every collector: those of Offbeat, with shards and with queues, and a user's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector_driver import NUM_ENVS, STEPS, Driver, Kind, joined, logs, of_env
from collectors import publication
from counting import make
from offbeat.collect.factories import in_process, processes, ray
from offbeat.collect.processes import Processes
from offbeat.collect.shard_processes import ShardProcesses
from offbeat.errors import CheckpointError, UsageError
from offbeat.replay.shard import Shard
from offbeat.types import Chunk, Schema
from own_parts.collector import Background
from ray_stand_in import stand_in

WORKERS = 2


KINDS = {
    "in process, shard": Kind(in_process),
    "in process, queue": Kind(in_process, rollouts=True),
    "processes, shards": Kind(processes, workers=WORKERS),
    "processes, queues": Kind(processes, rollouts=True, workers=WORKERS),
    "ray, shards": Kind(ray, workers=WORKERS),
    "ray, queues": Kind(ray, rollouts=True, workers=WORKERS),
    "ray's stand-in, shards": Kind(stand_in(), workers=WORKERS),
    "ray's stand-in, queues": Kind(stand_in(), rollouts=True, workers=WORKERS),
    "own, shard": Kind(Background),
    "own, queue": Kind(Background, rollouts=True),
}
WITH_RAY = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: offbeat[ray]")]
MARKED = {name: pytest.param(name, marks=WITH_RAY if kind.make is ray else []) for name, kind in KINDS.items()}
IN_PROCESSES = [MARKED[name] for name, kind in KINDS.items() if kind.workers]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One local cluster for all tests of collectors that need it."""
    import ray

    ray.init(address="local", num_cpus=8, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def with_ray(request: pytest.FixtureRequest) -> None:
    """Starts it for the kinds that are Ray's."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if any(str(value).startswith("ray, ") for value in parameters.values()):
        request.getfixturevalue("cluster")


@pytest.fixture(params=MARKED.values())
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    """Makes drivers whose collectors are closed at last."""
    drivers: list[Driver] = []

    def make_driver(*arguments: Any, **options: Any) -> Driver:
        drivers.append(Driver(*arguments, **options))
        return drivers[-1]

    yield make_driver
    for each in drivers:
        each.collector.close()


def test_no_step_is_lost_or_reordered(kind: Kind, drive: Callable[..., Driver], tmp_path: Path) -> None:
    driver = drive(kind, make, tmp_path)
    driver.collector.publish(publication(0))
    driver.run_all(600)
    driver.collector.close()
    rows, logged = driver.columns(), logs(tmp_path)
    assert len(logged) == NUM_ENVS
    for env, log in enumerate(logged):
        mine = of_env(rows, env)
        count = len(mine["step"])
        assert count > 0
        episode, step, _, reward, terminated, truncated = (np.array(each[:count]) for each in zip(*log, strict=True))
        np.testing.assert_array_equal(mine["obs"], np.stack([episode, step], 1))
        np.testing.assert_array_equal(mine["next_obs"], np.stack([episode, step + 1], 1))
        np.testing.assert_array_equal(mine["reward"], reward.astype(np.float32))
        np.testing.assert_array_equal(mine["terminated"], terminated)
        np.testing.assert_array_equal(mine["truncated"], truncated)
    finished = sorted((each.env, each.episode) for chunk in driver.chunks for each in chunk.finished)
    ended = rows["terminated"] | rows["truncated"]
    polled = sorted(zip(rows["env"][ended].tolist(), rows["episode"][ended].tolist(), strict=True))
    assert len(set(finished)) == len(finished)
    assert set(polled) <= set(finished)  # a worker may have sent the episodes of rows that were not polled


def test_a_polled_chunk_is_stored_already(kind: Kind, drive: Callable[..., Driver]) -> None:
    driver = drive(kind, make)
    driver.collector.publish(publication(0))
    for rows in range(40, 200, 40):
        driver.run(rows)
        polled, stored = driver.columns(), driver.stored()
        for env in range(NUM_ENVS):
            mine, theirs = of_env(polled, env), of_env(stored, env)
            for name in mine:
                np.testing.assert_array_equal(theirs[name][: len(mine[name])], mine[name], err_msg=name)


def test_what_is_allowed_is_made_and_no_more(kind: Kind, drive: Callable[..., Driver]) -> None:
    driver = drive(kind, make)
    driver.collector.publish(publication(0))
    driver.collector.allow(-1)
    assert driver.poll() == 0
    for allowed in (0, 10, 31):
        # What begins while at most so many steps are made: a vector step of a worker, or its rollout.
        whole = (STEPS if kind.rollouts else 1) * NUM_ENVS // max(1, kind.workers)
        expected = (allowed // whole + 1) * whole
        driver.collector.allow(allowed)
        driver.poll_until(expected)
        assert driver.rows == expected
        assert driver.poll() == 0
    driver.collector.allow(-1)
    assert driver.poll() == 0


def test_rows_carry_the_version_that_acted(kind: Kind, drive: Callable[..., Driver]) -> None:
    driver = drive(kind, make)
    driver.collector.publish(publication(7))
    driver.run(40)
    assert set(driver.columns()["version"]) == {7}
    driver.collector.publish(publication(9))
    driver.run(240)
    versions = driver.columns()["version"]
    assert set(versions) == {7, 9}
    assert versions[-1] == 9
    assert (np.diff(of_env(driver.columns(), 0)["version"]) >= 0).all()
    oldest = driver.collector.oldest_version()
    assert oldest is None or oldest <= 9


def test_a_chunk_is_named_by_worker_boot_and_sequence(kind: Kind, drive: Callable[..., Driver]) -> None:
    driver = drive(kind, make)
    driver.collector.publish(publication(0))
    driver.run_all(200)
    assert {chunk.worker for chunk in driver.chunks} == set(range(max(1, kind.workers)))
    assert {chunk.boot for chunk in driver.chunks} == {1 if kind.workers else 0}
    for worker in range(kind.workers):
        mine = [chunk for chunk in driver.chunks if chunk.worker == worker]
        assert [chunk.sequence for chunk in mine] == np.cumsum([0, *map(len, mine)])[:-1].tolist()
    assert sum(chunk.calls for chunk in driver.chunks) >= 200 // NUM_ENVS


def test_a_collector_continues_from_its_snapshot(kind: Kind, drive: Callable[..., Driver]) -> None:
    straight = drive(kind, "Pendulum-v1")
    straight.collector.publish(publication(0))
    straight.run(3 * STEPS * NUM_ENVS)
    straight.collector.allow(straight.rows + 100)  # so that it may be in the middle of a step
    straight.poll()
    state = straight.collector.snapshot()
    time.sleep(0.05)  # a step that is still under way, and is not part of the snapshot, would be made now
    straight.take(state.chunks)
    before, counted = len(straight.chunks), straight.ledger.state()
    generator = straight.context.rng.bit_generator.state
    shards = {name: _held(shard, (state.ends or {}).get(name)) for name, shard in straight.experience.shards.items()}
    straight.run_all(straight.rows + 200, since=before)

    resumed = drive(kind, "Pendulum-v1")
    resumed.context.rng.bit_generator.state = generator
    for name, shard in resumed.experience.shards.items():
        shard.restore([shards[name]])
    notes = resumed.collector.restore(state.arrays, json.loads(json.dumps(state.values)))
    resumed.ledger.restore(json.loads(json.dumps(counted)))
    resumed.collector.publish(publication(0))
    resumed.chunks = straight.chunks[:before]
    earlier, earlier_rows = resumed.rows, resumed.columns()
    resumed.run_all(earlier + 200, since=before)
    assert {chunk.boot for chunk in resumed.chunks[before:]} == {2 if kind.workers else 0}
    mine, theirs = (joined(each.chunks[before:]) for each in (resumed, straight))
    if kind.rollouts and kind.workers:  # what is in the queues is not part of a checkpoint
        assert "begin new episodes" in notes[0]
        for env in np.unique(earlier_rows["env"]):
            assert of_env(mine, env)["episode"].min() > of_env(earlier_rows, env)["episode"].max()
        return
    assert notes == []
    for env in range(NUM_ENVS):
        one, two = of_env(mine, env), of_env(theirs, env)
        count = min(len(one["step"]), len(two["step"]))
        assert count > 0
        for name in one:
            np.testing.assert_array_equal(one[name][:count], two[name][:count], err_msg=name)


def _held(shard: Shard, end: int | None) -> Chunk:
    return shard.read(0, shard.committed if end is None else end)


def test_a_snapshot_of_another_number_of_collectors_is_refused(drive: Callable[..., Driver]) -> None:
    alone, two = drive(KINDS["in process, shard"], make), drive(KINDS["processes, shards"], make)
    states = alone.collector.snapshot(), two.collector.snapshot()
    with pytest.raises(CheckpointError, match="was made with collectors=2, this run has 0"):
        alone.collector.restore(states[1].arrays, states[1].values)
    with pytest.raises(CheckpointError, match="was made with collectors=0, this run has 2"):
        two.collector.restore(states[0].arrays, states[0].values)


@pytest.mark.parametrize("started", [False, True])
def test_closing_twice_is_closing_once(kind: Kind, started: bool, drive: Callable[..., Driver]) -> None:
    driver = drive(kind, make)
    if started:
        driver.collector.publish(publication(0))
        driver.run(20)
    driver.collector.close()
    driver.collector.close()
    assert driver.collector.report().restarts == 0


@pytest.mark.parametrize("name", IN_PROCESSES)
def test_workers_join_and_leave_and_no_row_is_lost(name: str, drive: Callable[..., Driver], tmp_path: Path) -> None:
    driver = drive(KINDS[name], make, tmp_path)
    workers = driver.collector
    assert isinstance(workers, Processes)
    workers.publish(publication(0))
    driver.run(100)
    assert workers.add(3) == 2
    assert (workers.workers, workers.num_envs) == ([0, 1, 2], 7)
    driver.run_all(driver.rows + 50, range(7))

    workers.remove(0)
    assert (workers.workers, workers.num_envs) == ([1, 2], 5)
    with pytest.raises(UsageError, match=r"worker 0 does not exist; the workers are \[1, 2\]"):
        workers.remove(0)
    driver.run(driver.rows + 200)
    made = driver.stored()
    gone = [of_env(made, env) for env in (0, 1)]
    polled = [of_env(driver.columns(), env) for env in (0, 1)]
    assert [len(each["step"]) for each in polled] == [len(each["step"]) for each in gone]
    if not KINDS[name].rollouts:
        assert all(each["terminated"][-1] or each["truncated"][-1] for each in gone), "an episode is left open"

    state = workers.snapshot()
    driver.take(state.chunks)
    assert [each["worker"] for each in state.values["collectors"]] == [1, 2]
    assert state.values["earlier_rows"] == sum(len(each["step"]) for each in polled)
    workers.close()
    rows = driver.columns()
    for env, log in enumerate(logs(tmp_path)):
        mine = of_env(rows, env)
        happened = [(entry.episode, entry.step) for entry in log[: len(mine["step"])]]
        assert list(map(tuple, mine["obs"].tolist())) == happened


@pytest.mark.parametrize("name", IN_PROCESSES)
def test_a_worker_may_join_before_the_first_weights_and_leave_at_once(name: str, drive: Callable[..., Driver]) -> None:
    driver = drive(KINDS[name], make)
    assert isinstance(driver.collector, Processes)
    assert driver.collector.add(1) == 2
    driver.collector.remove(1)
    driver.collector.publish(publication(0))
    driver.run_all(100, {0, 1, 4})
    with pytest.raises(UsageError, match="num_envs=0"):
        driver.collector.add(0)


def test_a_step_that_is_being_stored_is_not_permitted_twice() -> None:
    """A worker counts a call, stores its rows, and then counts the call as stored: `allow` may come in between."""
    driver = Driver(Kind(processes, workers=1), make)
    workers = driver.collector
    assert isinstance(workers, ShardProcesses)
    try:
        [slot] = workers._slots
        control, shard = slot.control, slot.store
        steps = NUM_ENVS  # two vector steps: one begins with no row made, and one with as many as this

        def permitted() -> int:
            workers.allow(steps)
            return control.permit

        assert permitted() == 2
        control.calls = 1
        assert permitted() == 2
        _write_step(shard)
        assert permitted() == 2
        control.stored_calls = 1
        assert permitted() == 2
        control.calls = 2  # and here the process is killed: the rows of this call never come
        assert permitted() == 2
        control.stored_calls = control.calls  # as the next process in the slot does
        assert permitted() == 3
        control.calls = 3
        _write_step(shard)
        assert permitted() == 3
        control.stored_calls = 3
        assert permitted() == 3
    finally:
        workers.close()


def _write_step(shard: Shard) -> None:
    schema: Schema = shard.schema
    shard.write(Chunk({each.name: np.zeros((NUM_ENVS, *each.shape), each.dtype) for each in schema}))
