"""What a run chooses by itself: threads, slack and how far collectors may be ahead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offbeat import settings, threads
from offbeat.algorithms.configs import Config
from offbeat.run.tuning import ahead, sentence, settled


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine of 8 cores that wakes its threads fast; the function makes it another."""

    def make(cores: int = 8, threads_wake_slowly: bool = False, idle_threads_spin: bool = False) -> None:
        monkeypatch.setattr(threads, "cores", lambda: cores)
        monkeypatch.setattr(threads, "threads_wake_slowly", lambda: threads_wake_slowly)
        monkeypatch.setattr(threads, "idle_threads_spin", lambda: idle_threads_spin)

    make()
    return make


def config(algorithm: str = "sac", **changes: Any) -> Config:
    return settings.make_config(algorithm, {"env": "HalfCheetah-v5", **changes})


def chosen(algorithm: str = "sac", **changes: Any) -> Any:
    return settled(config(algorithm, **changes)).run.compute


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2),
        ({"hidden": (64, 64)}, 1),
        ({"batch_size": 8_192}, 8),
        ({"hidden": (1_024, 1_024)}, 8),
        ({"hidden": ()}, 1),
        ({"hidden": (64, 64), "threads": 5}, 5),
    ],
)
def test_threads_follow_from_the_size_of_an_update(changes: dict[str, Any], expected: int) -> None:
    assert chosen(**changes).threads == expected


def test_threads_follow_from_the_machine(machine: Any) -> None:
    machine(cores=1)
    assert chosen().threads == 1
    machine(threads_wake_slowly=True)
    assert chosen().threads == 1
    assert chosen(batch_size=8_192).threads == 8
    machine(cores=128)
    assert chosen().threads == 2
    assert chosen(batch_size=8_192).threads == 16


def test_one_thread_where_idle_ones_would_keep_a_core_busy(machine: Any) -> None:
    machine(idle_threads_spin=True)
    assert chosen(batch_size=8_192).threads == 1
    assert chosen(batch_size=8_192, threads=4).threads == 4
    assert "import offbeat first" in sentence(settled(config()), "numpy")


def test_the_first_lines_say_how_many_learners_and_collectors_there_are() -> None:
    assert sentence(settled(config()), "numpy") == "learner 2 of 8 threads; acting in numpy"
    assert sentence(settled(config(threads=1, learners=2, collectors=2, num_envs=2)), "numpy").startswith(
        "2 learners, each 1 of 8 threads; acting in numpy; 2 collectors of each learner; slack "
    )
    on_ray = sentence(settled(config(threads=1, collectors=1, collector="ray", ray_address="auto")), "torch")
    assert on_ray.startswith("learner 1 of 8 threads; acting in torch; 1 collector on Ray (auto); slack ")


def test_cores_are_left_for_what_collectors_need_and_not_for_their_number(machine: Any) -> None:
    machine(cores=2)
    assert chosen(collectors=1).threads == 2  # one update per step: the collector sleeps
    assert chosen(collectors=1, num_envs=64, updates_per_step=0.0625).threads == 2
    assert chosen(collectors=1, num_envs=64, updates_per_step=0.01).threads == 1  # hardly any update: it never does
    assert chosen(num_envs=64, updates_per_step=0.0625).threads == 2
    assert chosen(num_envs=64, updates_per_step=0.01).threads == 1
    machine(cores=4)
    many = {"num_envs": 64, "updates_per_step": 0.001, "batch_size": 8_192}
    assert [chosen(collectors=count, **many).threads for count in (1, 2, 3)] == [4, 4, 4]
    many["updates_per_step"] = 0.0001
    assert [chosen(collectors=count, **many).threads for count in (1, 2, 3)] == [3, 2, 1]


def test_rollouts_count_by_their_minibatches() -> None:
    assert chosen("ppo").threads == 1
    wide = {"hidden": (256, 256), "rollout_steps": 512, "minibatches": 4}
    assert chosen("ppo", num_envs=1, **wide).threads == 1
    assert chosen("ppo", num_envs=64, **wide).threads == 8


@pytest.mark.parametrize(
    ("changes", "slack"),
    [
        ({}, 32),
        ({"num_envs": 64, "updates_per_step": 0.0625}, 8),
        ({"num_envs": 64, "updates_per_step": 0.01}, 50),
        ({"num_envs": 64}, 2),
        ({"updates_per_step": 20}, 2),
        ({"updates_per_step": 0.01}, 64),
        ({"capacity": 1_000, "num_envs": 100, "updates_per_step": 0.01}, 3),
        ({"slack": 5}, 5),
    ],
)
def test_slack_holds_some_tens_of_updates_in_vector_steps(changes: dict[str, Any], slack: int) -> None:
    assert ahead(config(collectors=1, **changes).run) == (slack, slack)


def test_ahead_by_what_was_said() -> None:
    assert ahead(config(collectors=1, collect_ahead=3).run) == (32, 3)
    assert ahead(config(collectors=1, slack=0).run) == (0, 1)


def test_threads_that_were_chosen_are_recorded_and_stay_on_another_machine(machine: Any) -> None:
    recorded = settings.flatten(settled(config()))
    machine(cores=64, threads_wake_slowly=True)
    assert settled(settings.make_config("sac", recorded)).run.compute.threads == 2


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [("os", {}, "1000 False"), ("torch", {}, "None True"), ("torch", {"OMP_WAIT_POLICY": "passive"}, "None False")],
)
def test_importing_offbeat_lets_threads_sleep_soon_if_it_comes_before_torch(
    first: str, given: dict[str, str], expected: str
) -> None:
    code = f"import {first}, os, offbeat; print(os.environ.get('GOMP_SPINCOUNT'), offbeat.threads.idle_threads_spin())"
    source = str(Path(threads.__file__).parents[1])
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": source, **given}
    )
    assert printed.stdout.strip() == expected
