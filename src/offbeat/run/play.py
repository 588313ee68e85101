"""Watching a run's policy: in a window, or on film where there is no display."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.collect.rollout import advance
from offbeat.envs import Vector
from offbeat.errors import OffbeatError, UsageError
from offbeat.observe.video import frame_rate
from offbeat.policies import Policy
from offbeat.run.saved import SavedPolicy
from offbeat.run.stop import Stop
from offbeat.types import Array, Episode

Say = Callable[[str], None]
WITHOUT_WINDOW = ("dummy", "offscreen")
"""SDL's drivers that show nothing."""


@dataclass(frozen=True)
class Played:
    """Returns and lengths of the episodes that were played to their end, and the film where there was no display."""

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
    say: Say = print,
    **callables: Any,
) -> Played:
    """Plays a run's policy, deterministically, on evaluation episodes, one after the other, and says each return.

    Ends after `episodes`, at Ctrl-C, or when the window is closed. env and callables are as for `evaluate`.
    """
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is out of range: it must be at least 1")
    missing = missing_display()
    render_mode = "human" if missing is None else "rgb_array"
    ended: list[Episode] = []

    def tell(episode: Episode) -> None:
        ended.append(episode)
        say(f"episode {len(ended)}: return {episode.total_reward:.2f}, length {episode.length}")

    video = None
    with Stop() as stop:
        saved = SavedPolicy(path, checkpoint, seed=seed, env=env, **callables)
        if missing is not None:
            say(f"{missing}: there is no display to play on, so this becomes a video")
        with closing(saved.vector(1, render_mode=render_mode)) as vector:
            steps = _steps(vector, saved.policy(vector), episodes, stop, tell)
            if stop():
                say("stopped before the first frame: nothing was played")
            elif missing is None:
                _show(steps, vector)
            else:
                video = saved.write_video(_pictures(steps, vector), vector, f"play-step-{saved.step}")
                say(f"video: {video}")
    return Played(tuple(each.total_reward for each in ended), tuple(each.length for each in ended), video)


def missing_display() -> str | None:
    """Why no window can be opened here, or None where one can."""
    driver = os.environ.get("SDL_VIDEODRIVER")
    if driver in WITHOUT_WINDOW:
        return f"SDL_VIDEODRIVER is {driver}"
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "neither DISPLAY nor WAYLAND_DISPLAY is set"
    return None


def _steps(
    vector: Vector, policy: Policy, episodes: int, stop: Callable[[], bool], tell: Callable[[Episode], None]
) -> Iterator[None]:
    """Yields before each step of `episodes` episodes of environment 0, so that whoever drives it can look.

    What it begins with is seen in any case, whenever the wish to stop comes.
    """
    observation, carry = vector.reset(), policy.initial_carry(vector.num_envs)
    while episodes:
        yield
        if stop():
            return
        moved = advance(vector, policy, observation, carry, None)
        observation, carry = moved.step.observation, moved.carry
        for episode in (each for each in moved.step.finished if each.env == 0):
            tell(episode)
            episodes -= 1


def _pictures(steps: Iterator[None], vector: Vector) -> Iterator[Array]:
    for _ in steps:
        picture = vector.render()
        if picture is not None:
            yield picture


def _show(steps: Iterator[None], vector: Vector) -> None:
    """Lets the environment draw in its window, no faster than its own frame rate, until that is closed.

    An environment with render_mode "human" draws within `reset` and `step`, and most wait there as well.
    """
    shown = vector.owned[0]
    if getattr(shown, "render_mode", None) is None:
        raise UsageError(
            f"{vector.spec.name} opens no window: its render_mode is None; a factory of your own draws when it takes "
            "render_mode and hands it to its environment"
        )
    seconds = 1.0 / frame_rate(shown)
    due = time.monotonic()
    for _ in steps:
        _check_window()
        if _closed(shown):
            return
        due = max(due + seconds, time.monotonic() - seconds)  # time that was lost is not made up for by a rush
        time.sleep(max(0.0, due - time.monotonic()))


def _check_window() -> None:
    """SDL draws to nowhere, without a word, where it cannot reach the display that the variables name."""
    pygame = sys.modules.get("pygame")
    if pygame is not None and pygame.display.get_init() and pygame.display.get_driver() in WITHOUT_WINDOW:
        names = {name: os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")}
        raise OffbeatError(
            f"no window could be opened: SDL reaches no display with {names}; repair these variables, or set "
            "SDL_VIDEODRIVER=dummy for a video instead"
        )


def _closed(env: Any) -> bool:
    """Whether the user has closed the window, of pygame or of MuJoCo; environments themselves do not look."""
    pygame = sys.modules.get("pygame")
    if pygame is not None and pygame.display.get_init() and pygame.event.peek(pygame.QUIT):
        return True
    window = getattr(getattr(getattr(env, "mujoco_renderer", None), "viewer", None), "window", None)
    glfw = sys.modules.get("glfw")
    return glfw is not None and window is not None and bool(glfw.window_should_close(window))
