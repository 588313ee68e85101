"""Warnings that are hidden while environments are created, and warnings that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mujoco
import pytest

from offbeat.envs import make_vector
from offbeat.envs.model_warnings import hide_model_file_warnings
from short_runs import train


def test_creating_a_mujoco_environment_prints_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        make_vector("HalfCheetah-v5", 2).close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []  # no MUJOCO_LOG.TXT
    assert mujoco.get_mju_user_warning() is None


def test_other_warnings_of_mujoco_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with hide_model_file_warnings("gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv"):
        mujoco.get_mju_user_warning()("Inertia is too large")
        mujoco.get_mju_user_warning()("attribute 'settotalmass' is deprecated and will be removed")
    assert capfd.readouterr().err == "WARNING: Inertia is too large\n\n"


def test_a_users_handler_receives_every_warning() -> None:
    heard: list[str] = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        make_vector("HalfCheetah-v5").close()
    finally:
        mujoco.set_mju_user_warning(None)
    assert any("deprecated" in message for message in heard)


def test_a_film_without_a_display_is_made_without_a_word_of_sdl(tmp_path: Path) -> None:
    run = train(tmp_path)
    hidden = ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-m", "offbeat", "eval", str(run.path), "--episodes", "1", "--video"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "video: " in done.stdout
    assert done.stderr == ""
