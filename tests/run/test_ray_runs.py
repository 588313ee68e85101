"""Whole runs with Ray collectors: by default in a stand-in for Ray, with Ray itself among the slow tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.run.checkpoint import Checkpoints
from short_runs import train

WITH_RAY = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: offbeat[ray]")]
KINDS = ["ray_stand_in:collector", pytest.param("ray", marks=WITH_RAY)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return request.param


def arrays(path: Path) -> dict[str, Any]:
    """What the newest checkpoint holds of the learner."""
    snapshot = Checkpoints(path).load("latest")
    return {name: array for name, array in snapshot.arrays.items() if not name.startswith("collector/")}


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


def test_with_slack_0_one_actor_gives_the_numbers_of_one_process(kind: str, tmp_path: Path) -> None:
    alone = train(tmp_path, name="alone", num_envs=3)
    beside = train(tmp_path, name="beside", num_envs=3, collectors=1, collector=kind, slack=0)
    mine, theirs = arrays(alone.path), arrays(beside.path)
    assert len(mine) > 5
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert alone.evaluation == beside.evaluation


@pytest.mark.parametrize("algorithm", ["sac", pytest.param("appo", marks=pytest.mark.slow)])
def test_a_run_is_resumed_by_processes_and_actors_in_turn(kind: str, algorithm: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {"rollout_steps": 5} if algorithm == "appo" else {"updates_per_step": 2.0, "warmup_steps": 20}
    common = {"num_envs": 4, "collectors": 2, "hidden": (8,), "eval_episodes": 0, "threads": 1, "quiet": True}
    run = offbeat.train(
        algorithm, "Pendulum-v1", total_steps=100, collector=kind, out=str(tmp_path), name="run", **common, **own
    )
    first = summary(run.path)
    if algorithm == "sac":
        assert first["updates_per_step"] == 2.0
        assert first["lost"] == {"quarantined_rows": 0, "abandoned_chunks": 0}
    else:
        assert first["lost"]["abandoned_rollouts"] <= 2
    for steps, other in ((200, "processes"), (300, kind)):
        run = offbeat.resume(run.path, total_steps=steps, collector=other, quiet=True)
        assert run.status == "finished"
        assert summary(run.path)["env_steps"] >= steps
    if algorithm == "sac":
        assert summary(run.path)["updates_per_step"] == 2.0
