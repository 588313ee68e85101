"""`--learners` and torchrun from outside: commands, a loop of one's own, and a script of skrl's interface."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import patience
from offbeat.errors import UsageError
from offbeat.learn import torch_ranks
from offbeat.learn.torch_launch import launch

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
SMALL = ["--warmup-steps", "100", "--hidden", "16", "16", "--batch-size", "16", "--eval-episodes", "1"]


def start(directory: Path, *words: Any) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *map(str, words)], cwd=directory, env=variables, **pipes)


def finished(directory: Path, *words: Any, expected: int = 0) -> str:
    process = start(directory, *words)
    printed, _ = process.communicate(timeout=patience.SECONDS)
    assert process.returncode == expected, printed
    return printed


def test_a_torch_without_gloo_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks.dist, "is_gloo_available", lambda: False)
    with pytest.raises(UsageError, match=r"this torch has no torch\.distributed with gloo"):
        launch(2, ["train", "sac"])


@pytest.mark.slow
def test_learners_and_torchrun_train_the_same_run(tmp_path: Path) -> None:
    train = ["train", "sac", "--env", "Pendulum-v1", "--total-steps", "300", *SMALL, "--out", "runs", "--quiet"]
    printed = finished(tmp_path, "-m", "offbeat", *train, "--learners", "2", "--name", "own")
    assert printed.count("run: runs/own") == 1  # by the first rank alone
    finished(tmp_path, *TORCHRUN, "-m", "offbeat", *train, "--name", "torchrun")
    own, other = (finished(tmp_path, "-m", "offbeat", "digest", f"runs/{name}") for name in ("own", "torchrun"))
    assert own == other


def long_run(directory: Path) -> subprocess.Popen[str]:
    """A run of two learners that would take long, from its second checkpoint on."""
    train = ["train", "sac", "--env", "Pendulum-v1", "--total-steps", "100000", *SMALL, "--checkpoint-every", "100"]
    process = start(directory, "-m", "offbeat", *train, "--learners", "2", "--out", "runs", "--name", "a")
    second = directory / "runs/a/checkpoints/step-000000000100"
    patience.wait_until(lambda: second.exists() or process.poll() is not None, "the run makes no checkpoint")
    return process


@pytest.mark.slow
def test_a_stopped_command_saves_and_exits_with_0(tmp_path: Path) -> None:
    process = long_run(tmp_path)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=patience.SECONDS)
    assert process.returncode == 0, printed
    assert "run: runs/a" in printed
    assert "death signal" not in printed
    assert json.loads((tmp_path / "runs/a/summary.json").read_text())["status"] == "stopped"


@pytest.mark.slow
def test_learners_whose_launcher_is_killed_save_and_end(tmp_path: Path) -> None:
    process = long_run(tmp_path)
    process.kill()
    printed, _ = process.communicate(timeout=patience.SECONDS)  # until the last learner has closed its output
    assert "run: runs/a" in printed, printed
    assert json.loads((tmp_path / "runs/a/summary.json").read_text())["status"] == "stopped"


@pytest.mark.slow
def test_a_wrong_setting_is_reported_once_and_exits_with_2(tmp_path: Path) -> None:
    printed = finished(tmp_path, "-m", "offbeat", "train", "sac", "--env", "Nowhere-v1", "--learners", "2", expected=2)
    assert printed.count("offbeat: error:") == 1


@pytest.mark.slow
def test_a_loop_of_ones_own_runs_on_two_ranks(tmp_path: Path) -> None:
    printed = finished(tmp_path, *TORCHRUN, EXAMPLES / "own_loop.py", "--steps", "320", "--out", "loop")
    assert printed.count("the loaded agent acts identically") == 2
    state = json.loads(next((tmp_path / "loop/checkpoints").glob("step-*/state.json")).read_text())
    assert state["values"]["steps"] == 640
    assert len(state["values"]["ranks"]) == 1


@pytest.mark.slow
def test_a_script_of_skrls_interface_runs_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "compared.py"
    text = (EXAMPLES / "coming_from_skrl.py").read_text()
    script.write_text(
        "import offbeat.learn.torch_ranks as ranks\nranks.UPDATES_BETWEEN_COMPARISONS = 10\n"  # it ends if they differ
        + text
    )
    printed = finished(tmp_path, *TORCHRUN, script, "--timesteps", "260", "--episodes", "1")
    assert len(re.findall(r"^mean return: -\d+", printed, re.MULTILINE)) == 2
    assert len(list((tmp_path / "runs/skrl/pendulum").glob("events*"))) == 1  # of the first rank


@pytest.mark.slow
def test_two_ranks_learn_pendulum(tmp_path: Path) -> None:
    train = ["train", "sac", "--env", "Pendulum-v1", "--total-steps", "6000", "--hidden", "64", "64", "--seed", "1"]
    options = ["--learners", "2", "--eval-every", "0", "--out", "runs", "--name", "a", "--quiet"]
    finished(tmp_path, "-m", "offbeat", *train, *options)
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert summary["updates"] >= 4_900
    assert summary["evaluation"]["mean_return"] > -400  # a random policy has about -1,200
