"""A learner on several devices: batches are divided, and the updates are those of one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import offbeat
from offbeat.errors import UsageError
from offbeat.settings import make_config
from specs import vector_spec

TESTS = Path(__file__).parent.parent


def divided(*algorithms: str) -> dict[str, Any]:
    """What divided_learners.py prints in a process whose CPU counts as two devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(TESTS / "divided_learners.py"), *algorithms],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return divided("dqn", "appo")


@pytest.mark.parametrize("algorithm", ["dqn", "appo"])
def test_two_devices_learn_what_one_learns(algorithm: str, found: dict[str, Any]) -> None:
    assert_same(found[algorithm])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_two_devices_learn_what_one_learns_with_other_losses(algorithm: str) -> None:
    assert_same(divided(algorithm)[algorithm])


def assert_same(seen: dict[str, Any]) -> None:
    assert seen["learned"]
    assert seen["difference"] < 1e-9
    assert seen["acting"] < 1e-6
    assert (seen["device"], seen["devices"], seen["whole"], seen["restored"]) == ("cpu:0, cpu:1", [2], True, True)


def test_each_device_has_half_of_the_rows_and_sums_go_across(found: dict[str, Any]) -> None:
    shapes = found["dqn"]["shapes"]
    (updates, rows, size), parts = shapes["obs"]
    assert parts == [[updates, rows // 2, size]]
    assert shapes["reward"][1] == [[updates, rows // 2]]
    assert shapes["keys"][1] == [shapes["keys"][0]]  # whole on both
    assert found["dqn"]["adds_across"]


def test_devices_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"devices=2 has no effect, because torch learns on one device: .* backend jax"
    ):
        make_config("sac", {"env": "X", "devices": 2})
    with pytest.raises(
        UsageError, match=r"batch_size=256 cannot be divided among devices=3 equally; use batch_size=255"
    ):
        offbeat.Agent("sac", vector_spec(3, 2), backend="jax", devices=3)
    with pytest.raises(UsageError, match=r"devices=2 divides the rows of batches, but network='gru'.* use devices=1"):
        offbeat.Agent("sac", vector_spec(3, 2), backend="jax", devices=2, network="gru")
    with pytest.raises(UsageError, match=r"devices=64, but JAX sees only \d+ from device=cpu on; use devices=\d+"):
        offbeat.Agent("sac", vector_spec(3, 2), backend="jax", devices=64)
    with pytest.raises(UsageError, match=r"device='tpu', but JAX sees only cpu here"):
        offbeat.Agent("sac", vector_spec(3, 2), backend="jax", device="tpu")
