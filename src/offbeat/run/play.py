"""Plays a run's policy in a window, or records a video if there is no display."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.collect.step import advance
from offbeat.envs import Vector
from offbeat.errors import OffbeatError, UsageError
from offbeat.observe.video import frame_rate
from offbeat.policies import Policy
from offbeat.run.saved_policy import SavedPolicy
from offbeat.run.stop import Stop
from offbeat.types import Array, Episode

WINDOWLESS_DRIVERS = ("dummy", "offscreen")
"""SDL video drivers that open no window."""


@dataclass(frozen=True)
class PlayResult:
    """Returns and lengths of the finished episodes, and the video if there was no display."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    video: Path | None = None


def play_run(
    path: str | Path,
    *,
    episodes: int = 5,
    checkpoint: str = "latest",
    seed: int | None = None,
    env: Any = None,
    report: Callable[[str], None] = print,
    **callables: Any,
) -> PlayResult:
    """Plays a run's deterministic policy on evaluation episodes, one after the other, and reports each return.

    Ends after `episodes`, at Ctrl-C, or when the window is closed. env and callables: as for `offbeat.evaluate`.
    """
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is out of range: it must be at least 1")
    missing = missing_display()
    render_mode = "human" if missing is None else "rgb_array"
    finished: list[Episode] = []

    def on_episode(episode: Episode) -> None:
        finished.append(episode)
        report(f"episode {len(finished)}: return {episode.total_reward:.2f}, length {episode.length}")

    video = None
    with Stop() as stop:
        saved = SavedPolicy(path, checkpoint, seed=seed, env=env, **callables)
        if missing is not None:
            report(f"{missing}: there is no display, so the episodes are recorded as a video")
        with closing(saved.vector(1, render_mode=render_mode)) as vector:
            steps = _steps(vector, saved.policy(vector), episodes, stop, on_episode)
            if stop():
                report("stopped before the first frame: nothing was played")
            elif missing is None:
                _show(steps, vector)
            else:
                video = saved.write_video(_frames(steps, vector), vector, f"play-step-{saved.step}")
                report(f"video: {video}")
    return PlayResult(tuple(each.total_reward for each in finished), tuple(each.length for each in finished), video)


def missing_display() -> str | None:
    """The reason why no window can be opened, or None if one can."""
    driver = os.environ.get("SDL_VIDEODRIVER")
    if driver in WINDOWLESS_DRIVERS:
        return f"SDL_VIDEODRIVER is {driver}"
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "neither DISPLAY nor WAYLAND_DISPLAY is set"
    return None


def _steps(
    vector: Vector, policy: Policy, episodes: int, stop: Callable[[], bool], on_episode: Callable[[Episode], None]
) -> Iterator[None]:
    """Runs `episodes` episodes of environment 0, and yields before each step so that the caller can render.

    It yields at least once, even if `stop()` is true from the start.
    """
    observation, carry = vector.reset(), policy.initial_carry(vector.num_envs)
    while episodes:
        yield
        if stop():
            return
        moved = advance(vector, policy, observation, carry, None)
        observation, carry = moved.step.observation, moved.carry
        for episode in (each for each in moved.step.finished if each.env == 0):
            on_episode(episode)
            episodes -= 1


def _frames(steps: Iterator[None], vector: Vector) -> Iterator[Array]:
    for _ in steps:
        frame = vector.render()
        if frame is not None:
            yield frame


def _show(steps: Iterator[None], vector: Vector) -> None:
    """Shows the steps in the environment's window, at most at its frame rate, until the window is closed.

    An environment with render_mode "human" draws within `reset` and `step`, and most also wait there.
    """
    shown = vector.unwrapped_envs[0]
    if getattr(shown, "render_mode", None) is None:
        raise UsageError(
            f"{vector.spec.name} opens no window: its render_mode is None; write the factory so that it takes "
            "render_mode and passes it to its environment"
        )
    seconds = 1.0 / frame_rate(shown)
    due = time.monotonic()
    for _ in steps:
        _check_window()
        if _closed(shown):
            return
        due = max(due + seconds, time.monotonic() - seconds)  # after a delay, do not show frames faster to catch up
        time.sleep(max(0.0, due - time.monotonic()))


def _check_window() -> None:
    """Raises OffbeatError if SDL cannot reach the display; SDL itself draws to nowhere and reports no error."""
    pygame = sys.modules.get("pygame")
    if pygame is not None and pygame.display.get_init() and pygame.display.get_driver() in WINDOWLESS_DRIVERS:
        names = {name: os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")}
        raise OffbeatError(
            f"no window could be opened: SDL finds no display with {names}; correct these variables, or set "
            "SDL_VIDEODRIVER=dummy to record a video instead"
        )


def _closed(env: Any) -> bool:
    """Whether the user has closed the window of pygame or MuJoCo; environments do not check this themselves."""
    pygame = sys.modules.get("pygame")
    if pygame is not None and pygame.display.get_init() and pygame.event.peek(pygame.QUIT):
        return True
    window = getattr(getattr(getattr(env, "mujoco_renderer", None), "viewer", None), "window", None)
    glfw = sys.modules.get("glfw")
    return glfw is not None and window is not None and bool(glfw.window_should_close(window))
