"""The scripts that came from skrl: they run here and, where skrl is installed, with its imports there."""

from __future__ import annotations

import importlib.util
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"
EXAMPLE = EXAMPLES / "coming_from_skrl.py"
JAX_EXAMPLE = EXAMPLES / "coming_from_skrl_jax.py"
RNN_EXAMPLE = EXAMPLES / "coming_from_skrl_rnn.py"
SHORT = ("--timesteps", "260", "--learning-starts", "230", "--checkpoint-interval", "130", "--episodes", "1")


def run(script: Path, directory: Path, *arguments: str) -> str:
    command = [sys.executable, str(script), "--directory", str(directory / "runs"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=directory, timeout=1_800)
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


def test_the_jax_example_runs_and_leaves_skrls_files(tmp_path: Path) -> None:
    assert mean_return(run(JAX_EXAMPLE, tmp_path, *SHORT)) < 0
    checkpoints = tmp_path / "runs" / "pendulum" / "checkpoints"
    assert {"agent_130.pickle", "agent_260.pickle"} <= {path.name for path in checkpoints.iterdir()}
    saved = pickle.loads((tmp_path / "runs" / "pendulum.pickle").read_bytes())
    assert {"policy", "critic_1", "target_critic_2", "policy_optimizer", "log_entropy_coefficient"} <= saved.keys()
    assert all(isinstance(each, bytes) for each in saved.values())


@pytest.mark.parametrize("kind", ["gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_the_recurrent_example_runs(kind: str, tmp_path: Path) -> None:
    assert mean_return(run(RNN_EXAMPLE, tmp_path, "--kind", kind, *SHORT)) < 0
    saved = torch.load(tmp_path / "runs" / "pendulum.pt", weights_only=True)
    assert "memory.rnn.weight_hh_l0" in saved["policy"]


@pytest.mark.skipif(importlib.util.find_spec("skrl") is None, reason="skrl is not installed")
@pytest.mark.parametrize(("example", "suffix"), [(EXAMPLE, ".pt"), (JAX_EXAMPLE, ".pickle")])
def test_the_same_file_runs_on_skrl_with_other_imports(example: Path, suffix: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(example.read_text().replace("from offbeat.compat.skrl.", "from skrl."))
    assert mean_return(run(script, tmp_path, *SHORT)) < 0
    assert (tmp_path / "runs" / "pendulum" / "checkpoints" / f"agent_260{suffix}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("example", [EXAMPLE, JAX_EXAMPLE])
def test_the_example_learns_pendulum(example: Path, tmp_path: Path) -> None:
    """A random policy has a mean return of about -1,220, and the untrained one of about -1,400."""
    assert mean_return(run(example, tmp_path, "--timesteps", "10000")) > -400


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_recurrent_example_learns_pendulum_without_velocity(kind: str, tmp_path: Path) -> None:
    """Without memory the mean return is about -1,250, that of a random policy."""
    assert mean_return(run(RNN_EXAMPLE, tmp_path, "--kind", kind)) > -500


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "forgets"), [("none", False), ("gru", True)])
def test_without_a_state_pendulum_without_velocity_is_not_learned(kind: str, forgets: bool, tmp_path: Path) -> None:
    """forgets: the state is zero in every step that acts."""
    script, source = tmp_path / "script.py", RNN_EXAMPLE.read_text()
    kept, zeroed = "x], dim=1), new\n", "x], dim=1), [0.0 * each for each in new]\n"
    assert kept in source
    script.write_text(source.replace(kept, zeroed) if forgets else source)
    assert mean_return(run(script, tmp_path, "--kind", kind)) < -800
