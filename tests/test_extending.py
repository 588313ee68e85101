"""docs/extending.md: its files are those of tests/own_parts, and its commands and code run, with fewer steps."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from offbeat.cli import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text()
PARTS = ROOT / "tests" / "own_parts"
FILE = r"^`own_parts/(\w+\.py)`[^\n]*:\n\n```python\n(.*?)^```$"
STEP = r"^```(bash|python|yaml)\n(.*?)^```$"
FEWER = [
    "--total-steps",
    "60",
    "--eval-episodes",
    "1",
    "--hidden",
    "8",
    "--threads",
    "1",
    "--preset",
    "none",
    "--quiet",
]
FROM_REPLAY = ["--warmup-steps", "30", "--random-steps", "30", "--batch-size", "8", "--capacity", "200"]
FROM_ROLLOUTS = ["--rollout-steps", "30"]


def blocks(pattern: str) -> list[tuple[str, str]]:
    return re.findall(pattern, PAGE, re.MULTILINE | re.DOTALL)


def test_the_files_of_the_page_are_those_of_the_package_and_short() -> None:
    shown = dict(blocks(FILE))
    assert shown.keys() == {path.name for path in PARTS.glob("*.py")} - {"__init__.py"}
    for name, text in shown.items():
        assert text == (PARTS / name).read_text(), f"{name} on the page differs from the file"
        assert len(text.splitlines()) < 60, name


def in_short(line: str) -> list[str]:
    """The arguments of a command, with fewer steps and smaller networks."""
    _, *arguments = line.split()
    if arguments[-1] == "--help":
        return arguments
    assert arguments[-2] == "--total-steps" or "--name" in arguments, line
    if arguments[0] == "resume":
        return [*arguments[:-1], "80", "--quiet"]
    at = arguments.index("--total-steps")
    smaller = FROM_ROLLOUTS if arguments[1] == "ppo" else FROM_REPLAY
    return [*arguments[:at], *arguments[at + 2 :], *FEWER, *smaller]


def small(code: str) -> str:
    settings = "total_steps=60, hidden=(8,), warmup_steps=30, random_steps=30, batch_size=8, eval_episodes=1"
    return re.sub(r"total_steps=[\d_]+", f'{settings}, threads=1, preset="none", quiet=True', code)


def test_every_command_and_every_line_of_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files, ran = {text for _, text in blocks(FILE)}, 0
    for language, block in blocks(STEP):
        if language == "yaml":
            Path("own.yaml").write_text(block)
        elif language == "python" and block not in files:
            Path("page.py").write_text(small(block))
            runpy.run_path("page.py")
            ran += 1
        elif language == "bash":
            for line in block.splitlines():
                code = main(in_short(line))
                printed = capsys.readouterr()
                assert code == 0, printed.err
                assert ("--expectile" if "--help" in line else "run: runs/") in printed.out
                ran += 1
    assert ran >= 12
