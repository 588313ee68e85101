"""The example that came from UniLab runs, goes on after kill -9, and learns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
KILLED = """
import os, signal, sys
import coming_from_unilab as example

owner, method, deadly, *arguments = sys.argv[1:]
kind, made = getattr(example, owner), []
original = getattr(kind, method)

def counted(self, *given):
    made.append(1)
    if len(made) == int(deadly):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *given)

if __name__ == "__main__":
    setattr(kind, method, counted)
    example.main(arguments)
"""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import coming_from_unilab

    monkeypatch.setattr(coming_from_unilab, "ENVS", 8)
    return coming_from_unilab


def killed(tmp_path: Path, owner: str, method: str, deadly: int, *arguments: str) -> str:
    """Runs the example in a process that kills itself in the `deadly`-th call of a method; what it printed."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED.replace("as example", "as example\nexample.ENVS = 8"))
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "examples")))
    command = [sys.executable, str(script), owner, method, str(deadly), *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("algo", "free", "learner"),
    [
        pytest.param("sac", [], "SACLearner", id="sac"),
        pytest.param("td3", ["--free"], "TD3Learner", id="td3-free", marks=pytest.mark.slow),
    ],
)
def test_a_killed_off_policy_run_goes_on(
    algo: str, free: list[str], learner: str, tmp_path: Path, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed after 8 of 10 iterations of 8 updates each, it goes on from the checkpoint of iteration 6."""
    arguments = ["--algo", algo, *free, "--iterations", "10", "--save-interval", "6", "--log-dir", str(tmp_path)]
    killed(tmp_path, learner, "soft_update_target", 9 * 8, *arguments)
    directory = tmp_path / (algo + "-free" * bool(free))
    assert (directory / "model_6.pt").exists()
    assert not (directory / "model_10.pt").exists()
    made = []
    kind = getattr(example, learner)
    original = kind.soft_update_target
    kind.soft_update_target = lambda self: (made.append(1), original(self))
    try:
        example.main(arguments)
    finally:
        kind.soft_update_target = original
    assert (directory / "model_10.pt").exists()
    # From 6 to 10; free-running, the checkpoint may be of a few updates later.
    assert 4 * 8 - 16 * bool(free) <= len(made) <= 4 * 8
    assert f"{algo}: mean return -" in capsys.readouterr().out


def test_a_killed_appo_loop_goes_on(tmp_path: Path, example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--algo", "appo", "--iterations", "8", "--save-interval", "3", "--log-dir", str(tmp_path)]
    first = killed(tmp_path, "APPOLearner", "update", 6, *arguments)
    assert "iteration 3: return" in first
    assert "iteration 6" not in first
    example.main(arguments)
    said = capsys.readouterr().out
    assert "iteration 3:" not in said
    assert "iteration 8: return" in said
    assert "appo: mean return -" in said


# Random actions return about -1,230 on these episodes, an untrained actor of APPO -1,315.


@pytest.mark.slow
@pytest.mark.parametrize("free", [[], ["--free"]], ids=["in turns", "free"])
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_off_policy_learners_learn_with_64_environments(
    algo: str, free: list[str], tmp_path: Path, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "ENVS", 64)
    found = example.main(["--algo", algo, *free, "--iterations", "400", "--log-dir", str(tmp_path)])
    assert found > -400


@pytest.mark.slow
def test_appo_learns_from_rollouts_made_outside(
    tmp_path: Path, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "ENVS", 64)
    assert example.main(["--algo", "appo", "--iterations", "120", "--log-dir", str(tmp_path)]) > -600
