"""Every example runs without errors, with fewer steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import commands

ROOT = Path(__file__).parent.parent


def example(name: str, directory: Path, *arguments: str, expected: int = 0) -> str:
    return commands.run_in(directory, ROOT / "examples" / name, arguments, expected)


def test_the_demo_writes_its_pictures_and_fails_below_the_target_return(tmp_path: Path) -> None:
    done = example("demo.py", tmp_path, "--steps", "250", expected=1)
    path = tmp_path / re.findall(r"^run: (.+)$", done, re.MULTILINE)[-1]
    assert re.search(r"random policy +-\d{3,4}\.\d ", done)
    assert re.search(r"trained policy +-\d{3,4}\.\d ", done)
    assert "not solved" in done
    assert (path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (path / "videos" / "demo.gif").read_bytes().startswith(b"GIF89a")


def test_own_environment_is_trained_on(tmp_path: Path) -> None:
    done = example("own_environment.py", tmp_path, "--steps", "400")
    assert re.search(r"mean return -\d+\.\d\d, mean length \d+", done)


def test_an_agent_with_a_memory_is_trained_and_acts(tmp_path: Path) -> None:
    done = example("recurrent.py", tmp_path, "--steps", "120")
    assert re.search(r"^one episode: -\d+$", done, re.MULTILINE)


def test_masked_game_is_played_without_an_illegal_move(tmp_path: Path) -> None:
    done = example("masks.py", tmp_path, "--steps", "300")
    assert re.search(r"^won \d+ of 100 games, without an illegal move$", done, re.MULTILINE)


def test_own_loop_saves_and_loads(tmp_path: Path) -> None:
    done = example("own_loop.py", tmp_path, "--steps", "420")
    assert "episode 2: -" in done
    assert "the loaded agent acts identically" in done


def test_own_networks_are_trained_and_act(tmp_path: Path) -> None:
    done = example("own_networks.py", tmp_path, "--steps", "200")
    assert "action for a hanging pendulum: [" in done


def test_a_run_continues_when_a_collector_is_killed(tmp_path: Path) -> None:
    done = example("collectors.py", tmp_path, "--steps", "1300")
    assert "collectors restarted: 1" in done
    assert "updates per step: 1.000" in done


def test_ppo_and_appo_train_on_the_same_task(tmp_path: Path) -> None:
    done = example("rollouts.py", tmp_path, "--steps", "1600")
    assert re.search(r"^ppo: return \d+ after \d+ s\nppo: largest policy lag in updates: 0$", done, re.MULTILINE)
    assert re.search(r"^appo: return \d+ after \d+ s$", done, re.MULTILINE)


def test_own_callback_reports_and_stops_the_run(tmp_path: Path) -> None:
    done = example("callbacks.py", tmp_path, "--steps", "400", "--enough", "-2000")
    assert re.search(r"^step 200: evaluation -\d+\.\d, best training episode -\d+\.\d$", done, re.MULTILINE)
    assert "step-000000000200 is on disk" in done
    assert re.search(r"^finished: -\d+\.\d is enough$", done, re.MULTILINE)


def test_a_run_changes_its_backend_twice(tmp_path: Path) -> None:
    done = example("jax_backend.py", tmp_path, "--steps", "330")
    steps = (
        r"torch: return -\d+\.\d at step 110\njax: return -\d+\.\d at step 220\ntorch: return -\d+\.\d at step 330\n"
    )
    assert re.search(steps, done)


@pytest.mark.slow
def test_a_run_of_two_learners_goes_on_with_one(tmp_path: Path) -> None:
    done = example("learners.py", tmp_path, "--steps", "500")
    assert "killed a learner; the command ended with 1" in done
    assert re.search(r"one learner went on: finished with a mean return of -\d+", done)
