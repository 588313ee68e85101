"""Ray collectors on a cluster of three nodes, simulated on this machine, while nodes, head and learner are lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
import soak
from collectors import TakenRollouts, collect_each, columns, make_context, publication, settle, start
from logged import compare, compare_rows, make, read_log
from offbeat.collect.factories import ray as ray_collector
from offbeat.collect.ray_cluster import RaySettings
from offbeat.envs import make_vector
from offbeat.trace import NO_TRACE
from patience import wait_until

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'offbeat[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3_600)]

NODES, SMALL = 3, {"object_store_memory": 100 << 20}
NOTICES_SOON = {"health_check_period_ms": 300, "health_check_timeout_ms": 1_000, "health_check_failure_threshold": 2}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that runs no collector, and three nodes with room for two each."""
    from ray.cluster_utils import Cluster

    made = Cluster()
    made.add_node(num_cpus=0, include_dashboard=False, _system_config=NOTICES_SOON, **SMALL)
    for _ in range(NODES):
        made.add_node(num_cpus=2, **SMALL)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def connected(cluster: Any) -> Any:
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    return cluster


def lose_a_node(cluster: Any, choice: random.Random, actors: list[int]) -> None:
    """The node of one of these processes is lost, and another one joins."""
    parent = int(Path(f"/proc/{choice.choice(actors)}/stat").read_text().rpartition(")")[2].split()[1])
    [node] = [each for each in cluster.list_all_nodes() if each.all_processes["raylet"][0].process.pid == parent]
    cluster.remove_node(node, allow_graceful=choice.random() < 0.5)
    cluster.add_node(num_cpus=2, **SMALL)


def test_lost_nodes_cost_nothing_but_the_chunks_that_are_counted(connected: Any, tmp_path: Path) -> None:
    choice, losses = random.Random(0), soak.count(20)
    spec = make_vector(make, 1, env_kwargs={"log_dir": str(tmp_path)}).spec
    options = {"collectors": NODES, "num_envs": 2 * NODES, "capacity": 4_000_000, "max_crashes": 20}
    collector, slots = start(make, spec, make=ray_collector, log_dir=str(tmp_path), **options)
    try:
        collect_each(collector, slots, 100)
        for _ in range(losses):
            until = time.monotonic() + choice.uniform(0.0, 1.0)
            while time.monotonic() < until:
                collector.allow(10**9)
                collector.poll(0.01)
            lose_a_node(connected, choice, [slot.child.pid for slot in slots])
            collect_each(collector, slots, 200)
        settle(collector, slots)
        report = collector.report()
        abandoned = report.lost["abandoned_chunks"]
        missing = compare([columns(slot) for slot in slots], read_log(tmp_path), run_seed=3)
        print(f"{losses} nodes lost: {report.restarts} restarts, {abandoned} chunks abandoned, {missing} rows missing")
        assert report.restarts >= losses
        assert missing <= abandoned * 4 * 2, "a chunk has at most 4 vector steps of 2 environments"
        assert sum(slot.store.committed for slot in slots) == collector.polled_rows
    finally:
        collector.close()


def test_lost_nodes_cost_nothing_but_the_rollouts_that_are_counted(connected: Any, tmp_path: Path) -> None:
    choice, losses, steps = random.Random(2), soak.count(20), 10
    env_kwargs = {"log_dir": str(tmp_path)}
    spec = make_vector(make, 1, env_kwargs=env_kwargs).spec
    experience = TakenRollouts(spec, steps)
    options = {"collectors": NODES, "num_envs": 2 * NODES, "max_crashes": 20, "env_kwargs": env_kwargs}
    collector = ray_collector(make_context(make, spec, experience, **options))
    collector.connect(note=print, trace=NO_TRACE, stop=lambda: False)
    collector.publish(publication(0))
    slots = collector._slots
    try:
        for loss in range(losses + 1):
            wanted = [slot.store.written + 20 for slot in slots]
            collector.allow(10**9)
            wait_until(
                lambda wanted=wanted: (
                    collector.poll(0.01),
                    all(slot.store.written >= least for slot, least in zip(slots, wanted, strict=True)),
                )[1],
                "a worker makes no rollouts",
            )
            if loss < losses:
                lose_a_node(connected, choice, [slot.child.pid for slot in slots])
        collector.allow(-1)  # what was begun is completed
        wait_until(lambda: (collector.poll(0.01), not any(slot.store.filling for slot in slots))[1], "it goes on")
        while collector.poll(0.0):
            pass
        abandoned = collector.report().lost["abandoned_rollouts"]
    finally:
        collector.close()
    rows = np.concatenate([rows[valid] for rows, valid in experience.rollouts])
    missing = compare_rows({name: rows[name] for name in rows.dtype.names}, read_log(tmp_path))
    print(f"{losses} nodes lost: {abandoned} rollouts abandoned, {missing} rows missing")
    assert abandoned >= losses
    assert missing <= abandoned * steps * 2


def test_actors_are_placed_by_their_resources(connected: Any, tmp_path: Path) -> None:
    """Only one node has what they need, and after its loss another one with the same."""
    node = connected.add_node(num_cpus=0, resources={"simulator": 3}, **SMALL)
    spec = make_vector(make, 1, env_kwargs={"log_dir": str(tmp_path)}).spec
    place = RaySettings(cpus=0, resources={"simulator": 1})
    options = {"collectors": 3, "num_envs": 3, "capacity": 10_000}
    collector, slots = start(
        make, spec, make=lambda context: ray_collector(context, place), log_dir=str(tmp_path), **options
    )

    def nodes() -> set[int]:
        pids = [slot.child.pid for slot in slots]
        return {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}

    try:
        collect_each(collector, slots, 10)
        assert nodes() == {node.all_processes["raylet"][0].process.pid}
        connected.remove_node(node, allow_graceful=False)
        other = connected.add_node(num_cpus=0, resources={"simulator": 3}, **SMALL)
        collect_each(collector, slots, 100)
        assert nodes() == {other.all_processes["raylet"][0].process.pid}
    finally:
        collector.close()


def test_the_working_directory_and_offbeat_are_sent_to_the_nodes(cluster: Any, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "sent_env.py").write_text(
        "import os, gymnasium, offbeat\n"
        "def make(**kwargs):\n"
        f"    open(f'{tmp_path}/seen-{{os.getpid()}}', 'w').write(f'{{__file__}} {{offbeat.__file__}}')\n"
        "    return gymnasium.make('Pendulum-v1')\n"
    )
    settings = ["--total-steps", "120", "--warmup-steps", "50", "--eval-episodes", "0", "--quiet", "--out", "runs"]
    place = ["--collectors", "1", "--collector", "ray", "--ray-address", cluster.address, "--ray-working-dir", "."]
    command = [sys.executable, "-m", "offbeat", "train", "sac", "--env", "sent_env:make", *settings, *place]
    subprocess.run(command, cwd=code, check=True, timeout=300)
    seen = [path.read_text() for path in tmp_path.glob("seen-*")]
    assert any(text.count("runtime_resources") == 2 for text in seen), seen


class LosesANode:
    """A callback that loses a node with a collector at each of these steps. rows: of all chunks."""

    def __init__(self, cluster: Any, at: list[int]) -> None:
        self._cluster, self._at, self._random = cluster, at, random.Random(1)
        self.rows = 0

    def on_chunk(self, event: Any) -> None:
        self.rows += len(event.chunk)
        status = json.loads((event.path / "status.json").read_text())["processes"]
        actors = [each["pid"] for each in status if each["name"].startswith("collector") and each["pid"]]
        if self._at and event.step >= self._at[0] and actors:
            self._at.pop(0)
            lose_a_node(self._cluster, self._random, actors)


@pytest.mark.parametrize("algorithm", ["sac", "appo"])
def test_sac_and_appo_train_on_three_nodes_of_which_one_is_lost(algorithm: str, connected: Any, tmp_path: Path) -> None:
    own = {"rollout_steps": 32} if algorithm == "appo" else {"warmup_steps": 500, "random_steps": 500}
    watching = LosesANode(connected, [1_000])
    run = offbeat.train(
        algorithm,
        "Pendulum-v1",
        total_steps=4_000,
        num_envs=6,
        collectors=3,
        collector="ray",
        ray_address="auto",
        hidden=(32, 32),
        eval_episodes=2,
        checkpoint_every=1_500,
        callbacks=[watching],
        out=str(tmp_path),
        quiet=True,
        **own,
    )
    summary = json.loads((run.path / "summary.json").read_text())
    assert (run.status, summary["env_steps"], watching.rows) == ("finished", watching.rows, summary["env_steps"])
    assert summary["env_steps"] >= 4_000
    assert summary["updates"] > 0
    assert summary["restarts"] >= 1
    if algorithm == "sac":
        assert summary["updates_per_step"] == pytest.approx(1.0, abs=0.05)


def begun(address: str | None, out: Path) -> subprocess.Popen[str]:
    """A run of its own process, with two collectors, that would take long."""
    place = [] if address is None else ["--ray-address", address]
    settings = ["--total-steps", "1000000", "--num-envs", "2", "--collectors", "2", "--collector", "ray", *place]
    more = ["--hidden", "16", "16", "--checkpoint-every", "0", "--eval-every", "0", "--eval-episodes", "0", "--quiet"]
    command = [sys.executable, "-m", "offbeat", "train", "sac", "--env", "Pendulum-v1", "--out", str(out)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, "--name", "run", *settings, *more], text=True, **both)


def actors_of(out: Path) -> list[int]:
    """The processes of the collectors, once both collect."""

    def known() -> list[int]:
        try:
            status = json.loads((out / "run" / "status.json").read_text())
        except (OSError, ValueError):
            return []
        ours = [each for each in status["processes"] if each["name"].startswith("collector")]
        found = [each["pid"] for each in ours if each["state"] != "starting" and each["pid"]]
        return found if len(found) == 2 else []

    wait_until(known, "the collectors do not begin")
    return known()


@pytest.mark.parametrize("here", [True, False])
def test_actors_end_with_a_learner_that_is_killed(here: bool, request: Any, tmp_path: Path) -> None:
    address = None if here else request.getfixturevalue("cluster").address
    learner = begun(address, tmp_path)
    actors = actors_of(tmp_path)
    learner.send_signal(signal.SIGKILL)
    learner.wait()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in actors), "an actor is left", 60.0)


def test_a_stopped_run_is_saved_and_leaves_nothing_behind(tmp_path: Path) -> None:
    learner = begun(None, tmp_path)
    actors = actors_of(tmp_path)
    learner.send_signal(signal.SIGTERM)
    _, errors = learner.communicate(timeout=60)
    assert learner.returncode == 0, errors
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    assert not any(os.path.exists(f"/proc/{pid}") for pid in actors)


def test_a_lost_head_ends_the_run_with_a_checkpoint_and_a_sentence(cluster: Any, tmp_path: Path) -> None:
    learner = begun(cluster.address, tmp_path)
    actors_of(tmp_path)
    time.sleep(3.0)
    cluster.head_node.kill_gcs_server()
    _, errors = learner.communicate(timeout=60)
    assert learner.returncode == 1
    assert "the head of the Ray cluster" in errors
    assert "has not answered for" in errors
    saved = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.is_dir()]
    assert any(int("".join(filter(str.isdigit, name)) or 0) > 0 for name in saved), saved
