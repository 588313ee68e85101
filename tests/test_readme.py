"""What README tells a reader to run is run, in its order and with fewer steps; its tables and links are compared."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import commands
from offbeat.foreign_names import FOREIGN

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FENCED = r"^```(\w*)\n(.+?)^```$"
QUESTION = r"^\| [^|]+\? \| `(.+?)`"
FEWER = 40


def steps() -> list[str]:
    """Commands and Python code in the order in which they stand: fenced, or the answer to a "how do I"."""
    found: list[str] = []
    for each in re.finditer(f"{FENCED}|{QUESTION}", README, re.MULTILINE | re.DOTALL):
        language, block, answer = each.groups()
        if answer is not None:
            found.append(answer if answer.startswith("offbeat ") else f"import offbeat\n{answer}\n")
        elif language == "bash":
            found.extend(block.splitlines())
        else:
            assert language == "python", f"a block of {language!r} that no test would run:\n{block}"
            found.append(block)
    return found


def shortened(code: str) -> str:
    """The same for fewer and shorter episodes, with smaller networks."""
    code = re.sub(r"(--total-steps|--checkpoint-every) (\d+)", lambda it: f"{it[1]} {int(it[2]) // FEWER}", code)
    code = re.sub(r"(--episodes |episodes=)\d+", r"\g<1>1", code)
    small = "hidden=(16, 16), eval_episodes=1, threads=1, quiet=True"
    code = re.sub(r"total_steps=([\d_]+)", lambda it: f"total_steps={int(it[1]) // FEWER}, {small}", code)
    if code.startswith("offbeat train"):
        code += " --eval-episodes 1 --threads 1" + (" --hidden 16 16" if "--actor " not in code else "")
    return code


def run(step: str, directory: Path) -> str:
    """What one of them prints; of what sets a machine up, only the names are checked."""
    if "\n" in step:
        script = directory / "readme.py"
        script.write_text(shortened(step))
        return commands.run_in(directory, script, [])
    program, *rest = shlex.split(step, comments=True)
    if program == "offbeat":
        return commands.run_in(directory, None, shlex.split(shortened(" ".join(step.split())))[1:])
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), step
        return ""
    assert (program, *rest[:2]) == ("pip", "install", "-e"), f"a command that no test would run: {step}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\w+", rest[2])) <= set(extras), step
    return ""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Where everything was run, and what was printed."""
    directory = tmp_path_factory.mktemp("readme")
    shutil.copy(ROOT / "examples" / "own_networks.py", directory)
    return directory, {step: run(step, directory) for step in steps()}


def said(printed: dict[str, str], part: str) -> str:
    (output,) = (output for step, output in printed.items() if part in step)
    return output


def test_every_command_and_every_line_of_python_runs(followed: tuple[Path, dict[str, str]]) -> None:
    directory, printed = followed
    assert len(printed) >= 20
    assert said(printed, "--name first").splitlines()[-1] == "run: runs/first"
    assert "over 1 episodes" in said(printed, "--checkpoint best --episodes 20")
    assert "episode 1: return -" in said(printed, "offbeat play")
    assert re.search(r"^runs/\S+ -\d+\.\d+$", said(printed, "mean_return)\n\npolicy"), re.MULTILINE)
    assert re.search(r"^success rate: [01]\.\d+$", said(printed, "class Reach"), re.MULTILINE)
    assert "collector 1" in said(printed, "offbeat trace")
    assert any((directory / "runs" / "first" / "videos").iterdir())
    assert any("episode_length" in path.read_text() for path in directory.glob("runs/*/metrics.jsonl"))


def test_its_policy_acts_without_torch(followed: tuple[Path, dict[str, str]]) -> None:
    command = [sys.executable, str(ROOT / "examples" / "act_without_learner.py"), "runs/first"]
    done = subprocess.run(command, cwd=followed[0], stdout=subprocess.PIPE, text=True, check=True)
    assert "heavy libraries loaded: none" in done.stdout


def test_a_run_leaves_the_files_that_are_listed(followed: tuple[Path, dict[str, str]]) -> None:
    listed = set(re.findall(r"^      (\S+)  |^      \S+  (log.txt)$", README, re.MULTILINE))
    names = {name.rstrip("/") for pair in listed for name in pair if name} | {"log.txt"}
    there = {path.name for path in (followed[0] / "runs" / "first").iterdir() if not path.name.startswith(".")}
    assert names - there == {"wandb", "trace.json"}
    assert there <= names


def test_names_of_other_libraries_are_those_that_are_answered() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `(\w+)` \|$", README, re.MULTILINE)
    assert len(rows) >= 10
    for there, libraries, here in rows:
        assert set(libraries.split(", ")) <= set(FOREIGN[there].users), there
        assert here in FOREIGN[there].ours, there


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)|src=\"([^\"]+)\"", text)
    local = [name for pair in targets for name in pair if name and not name.startswith("http")]
    assert [name for name in local if not ((ROOT / page).parent / name).exists()] == []
