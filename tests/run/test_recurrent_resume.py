"""Recurrent runs with collector processes that are killed and resumed: states that acted go on, or begin anew."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commands
import offbeat
from offbeat.replay.segments import read_rows
from offbeat.run.checkpoint import Checkpoints

RUN = [
    *("--hidden", "8", "--threads", "1", "--quiet", "--preset", "none", "--logger", "none", "--eval-every", "0"),
    *("--eval-episodes", "1", "--max-episode-steps", "40", "--recurrent-size", "8", "--checkpoint-every", "70"),
    *("--total-steps", "320", "--network"),
]
SAC = ["sac", "--env", "Pendulum-v1", *RUN, "gru", "--batch-size", "4", "--sequence-length", "5", "--burn-in", "2"]
SAC += ["--n-step", "2", "--random-steps", "40", "--warmup-steps", "60", "--num-envs", "2"]
APPO = ["appo", "--env", "Pendulum-v1", *RUN, "lstm", "--sequence-length", "8", "--rollout-steps", "16"]
APPO += ["--epochs", "1", "--minibatches", "2", "--num-envs", "4", "--collectors", "2", "--learning-rate", "0"]


def killed(out: Path, arguments: list[str], at: int) -> Path:
    """The run that was killed after so many updates, and after a checkpoint."""
    output = out / "output"
    arguments = ["train", *arguments, "--out", str(out), "--name", "killed"]
    assert commands.finish(commands.start(arguments, output, signal.SIGKILL, at=at)) == -signal.SIGKILL
    assert Checkpoints(out / "killed").names(), output.read_text()
    return out / "killed"


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_run_with_one_collector_resumes_bit_for_bit(backend: str, tmp_path: Path) -> None:
    """With slack 0, in which updates and steps take turns."""
    one = [*SAC, "--collectors", "1", "--slack", "0", "--backend", backend]
    offbeat.resume(killed(tmp_path, one, at=170), quiet=True)
    commands.run(["train", *one, "--out", str(tmp_path), "--name", "straight"], tmp_path / "output")
    mine, theirs = (Checkpoints(tmp_path / name).load("latest") for name in ("killed", "straight"))
    assert mine.arrays.keys() == theirs.arrays.keys()
    for name, array in theirs.arrays.items():
        np.testing.assert_array_equal(mine.arrays[name], array, err_msg=name)
    for name in mine.values.keys() - {"chunks", "collector"}:  # these count the collector's processes, too
        assert mine.values[name] == theirs.values[name], name
    for one_env, other in zip(rows_of(tmp_path / "killed"), rows_of(tmp_path / "straight"), strict=True):
        for name, column in other.items():
            np.testing.assert_array_equal(one_env[name], column, err_msg=name)


@pytest.mark.slow
def test_with_slack_0_one_collector_gives_the_numbers_of_one_process(tmp_path: Path) -> None:
    alone, beside = (["train", *SAC, "--out", str(tmp_path), "--name", name] for name in ("alone", "beside"))
    commands.run(alone, tmp_path / "output")
    commands.run([*beside, "--collectors", "1", "--slack", "0"], tmp_path / "output")
    mine, theirs = (Checkpoints(tmp_path / name).load("latest").arrays for name in ("alone", "beside"))
    for name in mine:
        if name.startswith("learner/"):
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    for one_env, other in zip(rows_of(tmp_path / "alone"), rows_of(tmp_path / "beside"), strict=True):
        for name, column in other.items():
            np.testing.assert_array_equal(one_env[name], column, err_msg=name)


def rows_of(path: Path) -> list[dict[str, np.ndarray]]:
    """The rows of each environment in the newest checkpoint."""
    checkpoints = Checkpoints(path)
    replay = checkpoints._manifest(checkpoints._resolve("latest")).replay
    assert replay is not None
    chunks = [chunk.columns for listing in replay.values() for chunk in read_rows(path / "replay", listing)]
    return by_environment(chunks)


def by_environment(chunks: Any) -> list[dict[str, np.ndarray]]:
    rows = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return [
        {name: column[rows["env"] == env] for name, column in rows.items()} for env in np.unique(rows["env"]).tolist()
    ]


def check_states(rows: dict[str, np.ndarray], policy: Any, begins: int) -> None:
    """Each state gives the next one, by weights that did not change. begins: least number of episodes."""
    first = rows["step"] == 0
    assert first.sum() >= begins
    assert (rows["carry"][first] == 0).all()
    _, after, _ = policy.act(rows["obs"], rows["carry"], None)
    goes_on = np.flatnonzero(rows["step"][1:] == rows["step"][:-1] + 1)
    assert len(goes_on) + first.sum() == len(first)  # no step is missing
    np.testing.assert_allclose(after[goes_on], rows["carry"][goes_on + 1], rtol=0, atol=1e-6)


def test_interrupted_episodes_go_on_with_the_states_that_acted(tmp_path: Path) -> None:
    path = killed(tmp_path, [*SAC, "--collectors", "2", "--learning-rate", "0"], at=150)
    saved = [len(rows["step"]) for rows in rows_of(path)]
    policy = offbeat.resume(path, quiet=True).policy().policy
    found = rows_of(path)
    assert len(found) == 2
    for rows, before in zip(found, saved, strict=True):
        check_states(rows, policy, begins=3)
        assert rows["step"][before] == (rows["step"][before - 1] + 1) % 40
        assert len(rows["step"]) > before


class Chunks:
    """The rows of every rollout."""

    def __init__(self) -> None:
        self.rows: list[dict[str, np.ndarray]] = []

    def on_chunk(self, event: Any) -> None:
        self.rows.append({name: np.array(column) for name, column in event.chunk.columns.items()})


@pytest.mark.parametrize("network", ["lstm", pytest.param("rnn", marks=pytest.mark.slow)])
def test_rollouts_after_a_kill_begin_new_episodes_with_new_states(network: str, tmp_path: Path) -> None:
    """Queues of rollouts are not part of a checkpoint."""
    path, chunks = killed(tmp_path, [network if each == "lstm" else each for each in APPO], at=12), Chunks()
    policy = offbeat.resume(path, total_steps=640, quiet=True, callbacks=[chunks]).policy().policy
    found = by_environment(chunks.rows)
    assert len(found) == 4
    for rows in found:
        assert rows["step"][0] == 0
        check_states(rows, policy, begins=1)
