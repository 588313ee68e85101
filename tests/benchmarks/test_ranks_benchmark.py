"""The benchmark of several learners measures all contestants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.mark.slow
def test_ranks_threads_and_learners_apart_are_measured(tmp_path: Path) -> None:
    quick = ["--rounds", "1", "--seconds", "0.05", "--shapes", "small", "--capacity", "1000", "--out", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, BENCHMARKS / "ranks.py", *quick]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "ranks.json").read_text())["results"]["small"]
    names = {"1 rank, 1 thread", "1 rank, 2 threads", "2 ranks, 1 thread each", "2 learners of half the batch, apart"}
    assert {name for name, rounds in found.items() if isinstance(rounds, list) and rounds[0] > 0} == names
    assert found["sums"] > 0
    assert "Gloo: an update of 2 ranks takes" in done.stdout
