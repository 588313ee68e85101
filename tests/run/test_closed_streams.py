"""Standard streams that are closed from the beginning (`<&- >&- 2>&-`) are never shared memory or a file of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_asynchronous import SMALL

CLOSED = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]


def closed(line: list[str], seconds: float = 300) -> int:
    return subprocess.run([*CLOSED, *line], cwd=Path(__file__).parents[1], timeout=seconds, check=False).returncode


@pytest.mark.parametrize("call", ["descriptors import occupy_standard; occupy_standard()", "cli import main; main([])"])
def test_closed_descriptors_are_filled_with_the_null_device_and_given_to_children(call: str, tmp_path: Path) -> None:
    script = f"""
import os, subprocess
from offbeat.{call}
null = os.stat(os.devnull)
mine = [os.path.samestat(os.fstat(number), null) for number in range(3)]
child = subprocess.run(["sh", "-c", "echo >&0 && echo && echo >&2"]).returncode
open({str(tmp_path / "found")!r}, "w").write(repr((mine, child)))
"""
    assert closed([sys.executable, "-c", script]) == 0
    assert (tmp_path / "found").read_text() == "([True, True, True], 0)"


def test_streams_that_are_open_stay_as_they_are() -> None:
    script = "from offbeat.descriptors import occupy_standard; occupy_standard(); print(input())"
    line = [sys.executable, "-c", script]
    assert subprocess.run(line, input="word", capture_output=True, text=True, check=True).stdout == "word\n"


def test_a_run_whose_environment_prints_finishes(tmp_path: Path) -> None:
    settings = {"env": "printing_env:make", "total_steps": 120, "collectors": 1, "num_envs": 2}
    given = {**SMALL, **settings, "out": str(tmp_path), "name": "run"}
    assert closed([sys.executable, "-c", f"import offbeat; offbeat.train('sac', **{given!r})"]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
