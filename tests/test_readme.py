"""Runs the commands and code of README in their order, with fewer steps, and checks the links of README and docs."""

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
    """Commands and Python code of README in order: fenced blocks, and the answers of the table "How do I ..."."""
    found: list[str] = []
    for each in re.finditer(f"{FENCED}|{QUESTION}", README, re.MULTILINE | re.DOTALL):
        language, block, answer = each.groups()
        if answer is not None:
            found.append(answer if answer.startswith("offbeat ") else f"import offbeat\n{answer}\n")
        elif language == "bash":
            found.extend(block.splitlines())
        else:
            assert language == "python", f"a block of {language!r} that no test runs:\n{block}"
            found.append(block)
    return found


def shortened(code: str) -> str:
    """The same step with fewer steps and episodes, and with smaller networks."""
    code = re.sub(r"(--total-steps|--checkpoint-every) (\d+)", lambda it: f"{it[1]} {int(it[2]) // FEWER}", code)
    code = re.sub(r"(--episodes |episodes=)\d+", r"\g<1>1", code)
    small = "hidden=(16, 16), eval_episodes=1, threads=1, quiet=True"
    code = re.sub(r"total_steps=([\d_]+)", lambda it: f"total_steps={int(it[1]) // FEWER}, {small}", code)
    if code.startswith("offbeat train"):
        code += " --eval-episodes 1 --threads 1" + (" --hidden 16 16" if "--actor " not in code else "")
        code += " --recurrent-size 8" if "--network gru" in code else ""
    return code


def run(step: str, directory: Path) -> str:
    """The output of a step. `make` and `pip` are not run: only their targets and extras are checked."""
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
    assert (program, *rest[:2]) == ("pip", "install", "-e"), f"a command that no test runs: {step}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\w+", rest[2])) <= set(extras), step
    return ""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The directory in which all steps ran, and the output of each step."""
    directory = tmp_path_factory.mktemp("readme")
    shutil.copy(ROOT / "examples" / "own_networks.py", directory)
    return directory, {step: run(step, directory) for step in steps()}


def output_of(printed: dict[str, str], part: str) -> str:
    (output,) = (output for step, output in printed.items() if part in step)
    return output


def test_every_command_and_every_line_of_python_runs(executed: tuple[Path, dict[str, str]]) -> None:
    directory, printed = executed
    assert len(printed) >= 20
    assert output_of(printed, "--name first").splitlines()[-1] == "run: runs/first"
    assert "over 1 episodes" in output_of(printed, "--checkpoint best --episodes 20")
    assert "episode 1: return -" in output_of(printed, "offbeat play")
    assert re.search(r"^runs/\S+ -\d+\.\d+$", output_of(printed, "mean_return)\n\npolicy"), re.MULTILINE)
    assert re.search(r"^success rate: [01]\.\d+$", output_of(printed, "class Reach"), re.MULTILINE)
    assert "collector 1" in output_of(printed, "offbeat trace")
    assert any((directory / "runs" / "first" / "videos").iterdir())
    assert any("episode_length" in path.read_text() for path in directory.glob("runs/*/metrics.jsonl"))


def test_the_exported_policy_acts_without_torch(executed: tuple[Path, dict[str, str]]) -> None:
    command = [sys.executable, str(ROOT / "examples" / "act_without_learner.py"), "runs/first"]
    done = subprocess.run(command, cwd=executed[0], stdout=subprocess.PIPE, text=True, check=True)
    assert "heavy libraries loaded: none" in done.stdout


def test_a_run_has_the_files_that_are_listed(executed: tuple[Path, dict[str, str]]) -> None:
    listed = set(re.findall(r"^      (\S+)  |^      \S+  (log.txt)$", README, re.MULTILINE))
    names = {name.rstrip("/") for pair in listed for name in pair if name} | {"log.txt"}
    there = {path.name for path in (executed[0] / "runs" / "first").iterdir() if not path.name.startswith(".")}
    assert names - there == {"wandb", "trace.json"}
    assert there <= names


def test_names_of_other_libraries_are_those_that_errors_translate() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `(\w+)` \|$", README, re.MULTILINE)
    assert len(rows) >= 10
    for there, libraries, here in rows:
        assert set(libraries.split(", ")) <= set(FOREIGN[there].users), there
        assert here in FOREIGN[there].ours, there


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes from the headings of a page; code blocks have no headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    found = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", page.read_text())
    local = [target for pair in found for target in pair if target and not target.startswith("http")]
    for target in local:
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
