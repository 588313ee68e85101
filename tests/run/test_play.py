"""`offbeat play`: in a window where there is a display, on film where there is none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from PIL import Image

import offbeat
import patience
from offbeat.errors import OffbeatError, UsageError
from offbeat.run import play
from offbeat.run.play import PlayResult, missing_display, play_run

RATE = 200


class Drawing(gymnasium.Env):
    """Draws as Gymnasium asks for: by itself within reset and step for people, when asked for an array."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": RATE}
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    drawn: ClassVar[list[tuple[str, int]]] = []
    closed: ClassVar[list[str]] = []

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.count = render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return self._see()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        obs, info = self._see()
        return obs, 1.0, self.count == 10, False, info

    def _see(self) -> tuple[np.ndarray, dict]:
        if self.render_mode == "human":
            self.drawn.append(("by itself", self.count))
        return np.full(1, self.count / 10, np.float32), {}

    def render(self) -> np.ndarray | None:
        self.drawn.append(("asked", self.count))
        return np.full((16, 16, 3), 20 * self.count, np.uint8) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.closed.append(str(self.render_mode))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"hidden": (8,), "batch_size": 8, "random_steps": 20, "warmup_steps": 20, "total_steps": 40}
    out = str(tmp_path_factory.mktemp("runs"))
    run = offbeat.train("sac", Drawing, out=out, eval_episodes=1, threads=1, quiet=True, logger=(), **settings)
    return run.path


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A display, as far as `play` can tell."""
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delitem(sys.modules, "pygame", raising=False)  # another test may have opened it on a dummy display


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Drawing.drawn.clear()
    Drawing.closed.clear()


@pytest.mark.usefixtures("window")
def test_in_a_window_the_environment_draws_each_step_once_and_no_faster_than_its_rate(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    naps: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(naps), sleep=naps.append)
    monkeypatch.setattr(play, "time", clock)
    played = play_run(path, episodes=3, report=said.append)
    assert naps == pytest.approx([1 / RATE] * 30)
    assert said == [f"episode {number}: return 10.00, length 10" for number in (1, 2, 3)]
    assert (played.returns, played.lengths, played.video) == ((10.0,) * 3, (10,) * 3, None)
    assert {who for who, _ in Drawing.drawn} == {"by itself"}  # rendering again would draw every step twice
    steps = [count for _, count in Drawing.drawn if count]
    assert steps == [*range(1, 11)] * 3
    assert Drawing.closed == ["human"]
    assert not (path / "videos").exists()


@pytest.mark.usefixtures("window")
def test_play_shows_the_episodes_and_returns_that_eval_measures(path: Path) -> None:
    assert play_run(path, episodes=1, report=str).returns == offbeat.evaluate(path, episodes=1).returns


@pytest.mark.usefixtures("window")
def test_closing_the_window_ends_the_play(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False] * 14 + [True])
    display = SimpleNamespace(get_init=lambda: True, get_driver=lambda: "x11")
    fake = SimpleNamespace(display=display, QUIT=256, event=SimpleNamespace(peek=lambda kind: next(answers)))
    monkeypatch.setitem(sys.modules, "pygame", fake)
    assert play_run(path, episodes=5, report=str).lengths == (10,)
    assert next(answers, None) is None


def test_a_closed_mujoco_window_is_seen_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pygame", raising=False)
    monkeypatch.setitem(sys.modules, "glfw", SimpleNamespace(window_should_close=lambda window: window == "closed"))
    for state in ("open", "closed"):
        env = SimpleNamespace(mujoco_renderer=SimpleNamespace(viewer=SimpleNamespace(window=state)))
        assert play._closed(env) is (state == "closed")
    assert not play._closed(SimpleNamespace())


@pytest.mark.usefixtures("window")
def test_a_display_that_cannot_be_reached_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    display = SimpleNamespace(get_init=lambda: True, get_driver=lambda: "offscreen")
    monkeypatch.setitem(sys.modules, "pygame", SimpleNamespace(display=display))
    with pytest.raises(OffbeatError, match=r"'DISPLAY': ':0'.*SDL_VIDEODRIVER=dummy"):
        play_run(path, report=str)


@pytest.mark.usefixtures("window")
def test_what_draws_nothing_is_refused_with_the_remedy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drawing, "__init__", lambda self: setattr(self, "render_mode", None))
    with pytest.raises(UsageError, match="takes render_mode"):
        play_run(path, report=str)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.raises(OffbeatError, match="rendered no frame"):
        play_run(path, report=str)


@pytest.mark.parametrize(("argument", "value"), [("episodes", 0), ("seed", -1)])
def test_what_is_out_of_range_is_refused(argument: str, value: int, path: Path) -> None:
    with pytest.raises(UsageError, match=f"{argument}={value}"):
        play_run(path, **{argument: value})  # type: ignore[arg-type]


def test_without_a_display_the_episodes_become_a_film_at_the_environments_own_rate(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drawing, "metadata", {**Drawing.metadata, "render_fps": 20})
    monkeypatch.setattr("offbeat.observe.video.importlib.util.find_spec", lambda name: None)  # a GIF in any case
    said: list[str] = []
    played = play_run(path, episodes=2, report=said.append)
    assert played.video == path / "videos" / "play-step-40.gif"
    assert "there is no display" in said[0]
    assert said[1:] == [*(f"episode {each}: return 10.00, length 10" for each in (1, 2)), f"video: {played.video}"]
    assert Drawing.drawn == [("asked", count) for _ in range(2) for count in range(10)]
    assert Drawing.closed == ["rgb_array"]
    with Image.open(played.video) as film:
        assert (film.n_frames, film.info["duration"]) == (20, 50)  # type: ignore[attr-defined]
    shutil.rmtree(path / "videos")


class Heard:
    """Stands for `Stop`: the wish is there when it is asked for the (k + 1)-th time."""

    after = 0

    def __enter__(self) -> Heard:
        self.asked = 0
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self.after


def test_ctrl_c_before_the_first_frame_is_said_and_leaves_no_film(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "Stop", Heard)
    said: list[str] = []
    assert play_run(path, report=said.append) == PlayResult((), (), None)
    assert said[-1] == "stopped before the first frame: nothing was played"
    assert not (path / "videos").exists()
    assert Drawing.closed == ["rgb_array"]


@pytest.mark.parametrize(("after", "frames"), [(1, 1), (4, 4)])
def test_ctrl_c_ends_the_film_with_what_has_been_seen(
    after: int, frames: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "Stop", Heard)
    monkeypatch.setattr(Heard, "after", after)
    monkeypatch.setattr(Drawing, "metadata", {**Drawing.metadata, "render_fps": 20})  # so that a GIF keeps every frame
    monkeypatch.setattr("offbeat.observe.video.importlib.util.find_spec", lambda name: None)  # a GIF in any case
    played = play_run(path, report=str)
    assert played.video is not None
    with Image.open(played.video) as film:
        assert getattr(film, "n_frames", 1) == len(Drawing.drawn) == frames
    shutil.rmtree(path / "videos")


@pytest.mark.parametrize(
    ("platform", "variables", "missing"),
    [
        ("linux", {}, "neither DISPLAY nor WAYLAND_DISPLAY is set"),
        ("linux", {"DISPLAY": ":0"}, None),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, None),
        ("linux", {"DISPLAY": ":0", "SDL_VIDEODRIVER": "dummy"}, "SDL_VIDEODRIVER is dummy"),
        ("darwin", {}, None),
        ("win32", {"SDL_VIDEODRIVER": "offscreen"}, "SDL_VIDEODRIVER is offscreen"),
    ],
)
def test_whether_there_is_a_display(
    platform: str, variables: dict[str, str], missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert missing_display() == missing


@pytest.fixture
def display() -> Iterator[str]:
    """A virtual X display."""
    if shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb")
    read, write = os.pipe()
    server = subprocess.Popen(["Xvfb", "-displayfd", str(write)], pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as file:
        number = file.readline().strip()
    yield f":{number}"
    server.terminate()
    server.wait(patience.SECONDS)


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_command_plays_in_a_real_window_until_the_end_or_ctrl_c(
    interrupted: bool, display: str, tmp_path: Path
) -> None:
    settings = {"hidden": (8,), "batch_size": 8, "random_steps": 20, "warmup_steps": 20, "total_steps": 40}
    settings |= {"max_episode_steps": 10, "eval_episodes": 1, "threads": 1, "quiet": True, "logger": ()}
    run = offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), **settings)
    environment = {name: value for name, value in os.environ.items() if name != "SDL_VIDEODRIVER"}
    process = subprocess.Popen(
        [sys.executable, "-m", "offbeat", "play", str(run.path), "--episodes", "1000" if interrupted else "3"],
        env=environment | {"DISPLAY": display, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    if interrupted:
        process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=patience.SECONDS)
    assert process.returncode == 0
    lines = [first, *rest.splitlines()]
    assert all(line.startswith(f"episode {number}: return -") for number, line in enumerate(lines, start=1))
    assert len(lines) == 3 if not interrupted else len(lines) < 1000
    assert not (run.path / "videos").exists()
