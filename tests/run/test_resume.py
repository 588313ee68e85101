"""A run that is killed or stopped and resumed equals one that never was: same digest, same metrics but for times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offbeat.algorithms.configs import ALGORITHMS, PPO
from offbeat.observe.jsonl import read
from offbeat.run.checkpoint import digest

SMALL = ["--hidden", "32", "32", "--threads", "1", "--quiet"]
FROM_REPLAY = ["--batch-size", "32", "--capacity", "700", "--warmup-steps", "100", "--random-steps", "150"]
FROM_ROLLOUTS = ["--rollout-steps", "30", "--epochs", "4", "--minibatches", "5"]
EVENTS = ["--log-every", "70", "--eval-every", "300"]
RUN = ["--eval-episodes", "2", "--checkpoint-every", "130", "--total-updates", "1000", "--total-steps", "1000000"]
EVERYTHING = [
    *("--n-step", "3", "--actor-every", "2", "--target-every", "2", "--layer-norm", "--max-grad-norm", "5"),
    *("--normalise-observations", "--normalise-rewards", "--actor-schedule", "linear", "--critic-schedule", "cosine"),
    *("--num-envs", "3", "--updates-per-step", "0.7"),
]
ROLLOUTS_WITH_EVERYTHING = [
    *("--env", "Pendulum-v1", "--num-envs", "3", "--normalise-observations", "--normalise-rewards"),
    *("--reward-clip", "5", "--value-clip", "0.5", "--entropy-coefficient", "0.01"),
    *("--rate-control", "adaptive", "--schedule", "linear"),
]
OLDER_WEIGHTS = ["--sample-reuse", "2", "--target-every", "3", "--tau", "0.5"]
CASES = {
    "Pendulum": ["sac", "--env", "Pendulum-v1"],
    "MuJoCo": ["sac", "--env", "HalfCheetah-v5", "--max-episode-steps", "170"],
    "everything": ["sac", "--env", "Pendulum-v1", *EVERYTHING],
    "td3": ["td3", "--env", "Pendulum-v1", "--num-envs", "3", "--exploration-spread", "2"],
    "ddpg": ["ddpg", "--env", "Pendulum-v1", "--exploration", "ornstein_uhlenbeck", "--num-envs", "2"],
    "dqn": ["dqn", "--env", "CartPole-v1", "--dueling", "--n-step", "2", "--target-every", "70"],
    "redq": ["redq", "--env", "Pendulum-v1", "--critics", "5", "--updates-per-step", "3", "--actor-every", "3"],
    "DroQ": ["sac", "--env", "Pendulum-v1", "--critic-dropout", "0.1", "--critic-layer-norm", "--actor-value", "mean"],
    "Discrete sac": ["sac", "--env", "CartPole-v1", "--num-envs", "2"],
    "Discrete redq": ["redq", "--env", "CartPole-v1", "--critics", "3", "--critic-dropout", "0.1"],
    "ppo": ["ppo", "--env", "CartPole-v1"],
    "ppo with everything": ["ppo", *ROLLOUTS_WITH_EVERYTHING, "--squash", "--state-dependent-std"],
    "ppo with layer norm": ["ppo", "--env", "Pendulum-v1", "--layer-norm", "--optimiser", "rmsprop"],
    "appo": ["appo", "--env", "Pendulum-v1"],
    "appo with everything": ["appo", *ROLLOUTS_WITH_EVERYTHING, *OLDER_WEIGHTS],
    "Discrete appo": ["appo", "--env", "CartPole-v1", "--num-envs", "2", "--optimiser", "adamw"],
}
TIMES = {"wall", "steps_per_second", "updates_per_second"}


def _training(out: Path, algorithm: str, *settings: str) -> list[str]:
    kind = FROM_ROLLOUTS if issubclass(ALGORITHMS[algorithm], PPO) else FROM_REPLAY
    return ["train", algorithm, "--out", str(out), "--preset", "none", *SMALL, *kind, *EVENTS, *RUN, *settings]


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "offbeat", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _finish(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


def _wait_for_update(path: Path, update: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if (path / "metrics.jsonl").exists() and any(line["update"] >= update for line in read(path / "metrics.jsonl")):
            return
        time.sleep(0.005)
    raise AssertionError("the run did not get that far")


def _metrics(path: Path) -> list[dict[str, Any]]:
    lines = read(path / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def test_every_algorithm_is_among_the_cases() -> None:
    assert {algorithm for algorithm, *_ in CASES.values()} == set(ALGORITHMS)


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_run_equals_uninterrupted_run(case: str, tmp_path: Path) -> None:
    train = _training(tmp_path, *CASES[case])
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    process = _start(*train, "--name", "killed")
    _wait_for_update(killed, 400, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    assert json.loads((killed / "summary.json").read_text())["status"] == "running"
    assert _finish(_start("resume", str(killed), "--quiet")).splitlines()[-1] == f"run: {killed}"
    _finish(_start(*train, "--name", "straight"))

    assert digest(killed) == digest(straight)
    assert _metrics(killed) == _metrics(straight)
    assert read(killed / "evaluations.jsonl") == read(straight / "evaluations.jsonl")
    for path in (killed, straight):
        summary = json.loads((path / "summary.json").read_text())
        assert (summary["status"], summary["updates"]) == ("finished", 1000)


# Many environments, or turns: a signal often comes between the many updates that one vector step makes due.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "settings", [("sac", "--num-envs", "16"), ("appo", "--num-envs", "2", "--sample-reuse", "9")], ids=["sac", "appo"]
)
def test_stopped_and_resumed_run_equals_uninterrupted_run(
    settings: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    train = _training(tmp_path, *settings, "--env", "Pendulum-v1")
    train.remove("--quiet")
    process = _start(*train, "--name", "stopped")
    _wait_for_update(tmp_path / "stopped", 300, process)
    begun = time.monotonic()
    process.send_signal(number)
    out = _finish(process)
    assert time.monotonic() - begun < 10
    assert f"offbeat resume {tmp_path / 'stopped'}" in out
    summary = json.loads((tmp_path / "stopped" / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert summary["updates"] < 1000
    _finish(_start("resume", str(tmp_path / "stopped"), "--quiet"))
    _finish(_start(*train, "--name", "straight"))
    assert digest(tmp_path / "stopped") == digest(tmp_path / "straight")


def test_a_run_that_is_running_is_not_resumed(tmp_path: Path) -> None:
    process = _start(*_training(tmp_path, "sac", "--env", "Pendulum-v1"), "--name", "run")
    _wait_for_update(tmp_path / "run", 0, process)
    other = _start("resume", str(tmp_path / "run"), "--quiet")
    _, error = other.communicate(timeout=60)
    assert other.returncode == 1
    assert f"process {process.pid}" in error
    assert "Traceback" not in error
    process.kill()
    process.communicate()
