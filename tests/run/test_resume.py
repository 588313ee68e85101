"""A run that is killed or stopped and resumed equals one that never was: same digest, same metrics but for times."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import commands
import patience
from backends import backends_of
from offbeat.algorithms.registry import ALGORITHMS, find
from offbeat.observe.jsonl import read
from offbeat.run.checkpoint import digest

SMALL = ["--hidden", "32", "32", "--threads", "1", "--quiet"]
FROM_REPLAY = ["--batch-size", "32", "--capacity", "700", "--warmup-steps", "100", "--random-steps", "150"]
FROM_ROLLOUTS = ["--rollout-steps", "30", "--epochs", "4", "--minibatches", "5"]
EVENTS = ["--log-every", "70", "--checkpoint-every", "130"]
RUN = ["--eval-episodes", "2", "--max-episode-steps", "100", "--total-updates", "500", "--total-steps", "1000000"]
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
ROLLOUT_MEMORY = ["--recurrent-size", "8", "--sequence-length", "10"]
OWN_PARTS = [
    *("--replay", "own_parts.replay:Prioritised", "--replay-kwargs", "alpha=0.7"),
    *("--exploration", "own_parts.exploration:PinkNoise", "--preprocessor", "own_parts.preprocessor:LargestScale"),
    *("--actor-schedule", "own_parts.schedules:warm_up_and_fall", "--schedule-kwargs", "floor=0.2"),
    *("--collector", "own_parts.collector:Background", "--slack", "0"),
]
MEMORY = ["--recurrent-size", "16", "--sequence-length", "4"]
CASES = {
    "Pendulum": ["sac", "--env", "Pendulum-v1"],
    "MuJoCo": ["sac", "--env", "HalfCheetah-v5"],
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
    "recurrent sac": [
        *("sac", "--env", "Pendulum-v1", "--network", "gru", *MEMORY, "--burn-in", "2", "--n-step", "2"),
        *("--num-envs", "3", "--normalise-observations"),
    ],
    "recurrent ddpg": [
        *("ddpg", "--env", "Pendulum-v1", "--network", "lstm", *MEMORY, "--exploration", "ornstein_uhlenbeck"),
    ],
    "recurrent dqn": [
        *("dqn", "--env", "CartPole-v1", "--network", "rnn", *MEMORY, "--recurrent-layers", "2"),
        *("--start-state", "zero", "--num-envs", "2"),
    ],
    "own parts": ["own_parts.expectile:ALGORITHM", "--env", "Pendulum-v1", "--num-envs", "2", *OWN_PARTS],
    "Discrete appo": ["appo", "--env", "CartPole-v1", "--num-envs", "2", "--optimiser", "adamw"],
    "recurrent ppo": ["ppo", "--env", "CartPole-v1", *ROLLOUT_MEMORY, "--network", "gru"],
    "recurrent appo": ["appo", "--env", "Pendulum-v1", "--num-envs", "2", *ROLLOUT_MEMORY, "--network", "lstm"],
}
ON_JAX = (
    *("Pendulum", "everything", "td3", "dqn", "Discrete redq", "ppo with everything", "appo with everything"),
    *("recurrent sac", "recurrent ddpg", "recurrent dqn"),
)
"""Each algorithm's file once, with most of what it can do; those that the backend has."""
CASES |= {
    f"{case} on jax": [*CASES[case], "--backend", "jax"]
    for case in ON_JAX
    if "jax" in backends_of(CASES[case][0], "discrete" if "CartPole-v1" in CASES[case] else "box")
}
SLOW = (
    *("Pendulum on jax", "td3 on jax", "Discrete redq on jax", "ppo with everything on jax"),
    *("recurrent ddpg", "recurrent ppo", "recurrent sac on jax", "recurrent ddpg on jax", "recurrent dqn on jax"),
    *("MuJoCo", "ddpg", "DroQ", "Discrete redq", "ppo with layer norm", "Discrete appo"),
    *("recurrent dqn", "recurrent appo", "dqn on jax", "Pendulum", "redq", "Discrete sac", "ppo", "appo"),
    "recurrent sac",  # tests/run/test_recurrent_resume.py has it, with a collector
)
"""Like others, but of another algorithm, or with fewer settings: `make slow`."""
# In interpreters that share nothing, so that nothing may depend on the order of sets.
FRESH = ("everything", "appo with everything", "Pendulum on jax")
TIMES = {"wall", "steps_per_second", "updates_per_second", "policy_lag_seconds"}


def _training(out: Path, algorithm: str, *settings: str) -> list[str]:
    kind = FROM_ROLLOUTS if find(algorithm).learns_from == "rollouts" else FROM_REPLAY
    # A process evaluates beside a user's own collector: how far training is when it has a result is a matter of time.
    evaluations = ["--eval-every", "0" if "--collector" in settings else "200"]
    events = [*EVENTS, *evaluations]
    return ["train", algorithm, "--out", str(out), "--preset", "none", *SMALL, *kind, *events, *RUN, *settings]


def _summary(path: Path) -> tuple[str, int]:
    summary = json.loads((path / "summary.json").read_text())
    return summary["status"], summary["updates"]


def _metrics(path: Path) -> list[dict[str, Any]]:
    lines = read(path / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def test_every_algorithm_is_among_the_cases() -> None:
    assert {algorithm for algorithm, *_ in CASES.values() if ":" not in algorithm} == set(ALGORITHMS)


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in CASES]
)
def test_killed_and_resumed_run_equals_uninterrupted_run(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, fresh, output = _training(tmp_path, *CASES[case]), case in FRESH, tmp_path / "output"
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    moment = 250 + 17 * list(CASES).index(case) % 200
    if fresh:
        monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")  # each process compiles its programs itself
    process = commands.start([*train, "--name", "killed"], output, signal.SIGKILL, at=moment, fresh=fresh)
    assert commands.finish(process) == -signal.SIGKILL, output.read_text()
    assert _summary(killed)[0] == "running"
    said = commands.run(["resume", str(killed), "--quiet"], output, fresh=fresh)
    assert said.splitlines()[-1] == f"run: {killed}"
    commands.run([*train, "--name", "straight"], output, fresh=fresh)

    assert digest(killed) == digest(straight)
    assert _metrics(killed) == _metrics(straight)
    assert read(killed / "evaluations.jsonl") == read(straight / "evaluations.jsonl")
    assert _summary(killed) == _summary(straight) == ("finished", 500)


# Many environments, or turns: the signal comes between the many updates that one vector step makes due.
@pytest.mark.parametrize(
    ("settings", "number"),
    [
        (("sac", "--num-envs", "40"), signal.SIGTERM),
        pytest.param(("sac", "--num-envs", "40"), signal.SIGINT, marks=pytest.mark.slow),
        (("sac", "--num-envs", "40", "--backend", "jax"), signal.SIGINT),
        pytest.param(("appo", "--num-envs", "2", "--sample-reuse", "9"), signal.SIGTERM, marks=pytest.mark.slow),
        (("appo", "--num-envs", "2", "--sample-reuse", "9"), signal.SIGINT),
    ],
)
def test_stopped_and_resumed_run_equals_uninterrupted_run(
    settings: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    train, output = _training(tmp_path, *settings, "--env", "Pendulum-v1"), tmp_path / "output"
    train.remove("--quiet")
    process = commands.start([*train, "--name", "stopped"], output, number, at=205)
    assert commands.finish(process) == 0
    assert f"offbeat resume {tmp_path / 'stopped'}" in output.read_text()
    status, updates = _summary(tmp_path / "stopped")
    assert status == "stopped"
    assert 205 <= updates < 500
    commands.run(["resume", str(tmp_path / "stopped"), "--quiet"], output)
    commands.run([*train, "--name", "straight"], output)
    assert digest(tmp_path / "stopped") == digest(tmp_path / "straight")


def test_a_run_that_is_running_is_not_resumed(tmp_path: Path) -> None:
    endless = _training(tmp_path, "sac", "--env", "Pendulum-v1", "--name", "run")
    endless[endless.index("--total-updates") + 1] = "none"
    process, metrics = commands.start(endless, tmp_path / "output"), tmp_path / "run" / "metrics.jsonl"
    try:
        patience.wait_until(lambda: metrics.exists() and metrics.read_text(), "the run does not log")
        error = tmp_path / "error"
        assert commands.finish(commands.start(["resume", str(tmp_path / "run"), "--quiet"], error)) == 1
        assert f"process {process.pid}" in error.read_text()
        assert "Traceback" not in error.read_text()
    finally:
        process.kill()
        process.join()
