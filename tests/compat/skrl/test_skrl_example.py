"""The script that came from skrl: it runs here and, where skrl is installed, unchanged but for its imports there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[3] / "examples" / "coming_from_skrl.py"
SHORT = ("--timesteps", "260", "--learning-starts", "230", "--checkpoint-interval", "130", "--episodes", "1")


def run(script: Path, directory: Path, *arguments: str) -> str:
    command = [sys.executable, str(script), "--directory", str(directory / "runs"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=directory, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def mean_return(output: str) -> float:
    found = re.search(r"mean return: (\S+)", output)
    assert found, output
    return float(found[1])


def test_the_example_runs_and_leaves_skrls_files(tmp_path: Path) -> None:
    assert mean_return(run(EXAMPLE, tmp_path, *SHORT)) < 0
    checkpoints = tmp_path / "runs" / "pendulum" / "checkpoints"
    assert {"agent_130.pt", "agent_260.pt"} <= {path.name for path in checkpoints.iterdir()}
    saved = torch.load(tmp_path / "runs" / "pendulum.pt", weights_only=True)
    assert {"policy", "critic_1", "target_critic_2", "policy_optimizer", "log_entropy_coefficient"} <= saved.keys()


@pytest.mark.skipif(importlib.util.find_spec("skrl") is None, reason="skrl is not installed")
def test_the_same_file_runs_on_skrl_with_other_imports(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(EXAMPLE.read_text().replace("from offbeat.compat.skrl.", "from skrl."))
    assert mean_return(run(script, tmp_path, *SHORT)) < 0
    assert (tmp_path / "runs" / "pendulum" / "checkpoints" / "agent_260.pt").exists()


@pytest.mark.slow
def test_the_example_learns_pendulum(tmp_path: Path) -> None:
    """A random policy has a mean return of about -1,220, and the untrained one of about -1,400."""
    assert mean_return(run(EXAMPLE, tmp_path, "--timesteps", "10000")) > -400
