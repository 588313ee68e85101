"""Collectors in real Ray actors. One local cluster for all tests; tests/collect/test_ray_actors.py needs no Ray."""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector_driver import Driver, Kind
from collectors import collect, collect_each, columns, publication, settle, start
from counting import make as make_counting
from logged import compare, make, read_log
from offbeat.collect.factories import ray as ray_collector
from offbeat.envs import make_vector
from patience import wait_until

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'offbeat[ray]'")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_collectors.py"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, object_store_memory=100 << 20, **options)
    yield
    ray.shutdown()


def test_a_killed_actor_is_replaced_and_nothing_but_its_unfinished_chunks_is_lost(tmp_path: Path) -> None:
    notes: list[str] = []
    spec = make_vector(make, 1, env_kwargs={"log_dir": str(tmp_path)}).spec
    collector, slots = start(
        make,
        spec,
        make=ray_collector,
        collectors=2,
        num_envs=4,
        capacity=1_000_000,
        note=notes.append,
        log_dir=str(tmp_path),
    )
    try:
        collect(collector, 200)
        collect_each(collector, slots, 50)
        pid = slots[0].child.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: (collector.allow(10**9), collector.poll(0.01), notes)[2], "the death was not noticed")
        collect_each(collector, slots, 50)
        settle(collector, slots)
        report = collector.report()
        missing = compare([columns(slot) for slot in slots], read_log(tmp_path), run_seed=3)
        assert missing <= report.lost["abandoned_chunks"] * 4 * 2, "4 vector steps of 2 environments in each chunk"
        assert (report.restarts, [each["name"] for each in report.processes]) == (1, ["collector 0", "collector 1"])
        assert "collector 0 was lost" in notes[0]
    finally:
        collector.close()
    wait_until(lambda: not any(os.path.exists(f"/proc/{each.child.pid or pid}") for each in slots), "an actor is left")


def test_rollouts_come_whole_and_that_of_a_killed_actor_is_abandoned(tmp_path: Path) -> None:
    driver = Driver(Kind(ray_collector, rollouts=True, workers=1), make_counting, tmp_path, num_envs=2)
    try:
        driver.collector.publish(publication(4))
        driver.run(40)
        [slot] = driver.collector._slots
        driver.collector.allow(10**9)
        wait_until(lambda: (driver.poll(), slot.store.filling)[1], "no rollout is being made")
        os.kill(slot.child.pid, signal.SIGKILL)
        wait_until(lambda: (driver.poll(), driver.notes)[1], "the death was not noticed")
        driver.run(driver.rows + 40)
        assert driver.collector.report().lost["abandoned_rollouts"] == 1
        assert set(driver.columns()["version"]) == {4}
        for env in (0, 1):
            mine = driver.columns()["env"] == env
            numbers = driver.columns()["episode"][mine]
            assert (numbers[1:] >= numbers[:-1]).all()
    finally:
        driver.collector.close()


def test_the_example_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](["--steps", "400", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "updates per step: 1.000" in printed
    assert "actors replaced: 0, data lost: {'quarantined_rows': 0, 'abandoned_chunks': 0}" in printed
