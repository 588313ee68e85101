"""Videos: MP4 or GIF, by the path or by what is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from offbeat.errors import UsageError
from offbeat.observe.video import DEFAULT_RATE, GIF_LARGEST_SIDE, frame_rate, write_video
from offbeat.types import Array

has_ffmpeg = importlib.util.find_spec("imageio_ffmpeg") is not None


def frames(count: int, height: int = 48, width: int = 64) -> list[Array]:
    """A white column that moves to the right over black."""
    film = np.zeros((count, height, width, 3), np.uint8)
    for index in range(count):
        film[index, :, index * width // count : index * width // count + 4] = 255
    return list(film)


def seconds(path: Path) -> float:
    with Image.open(path) as film:
        total = 0
        for index in range(film.n_frames):
            film.seek(index)
            total += film.info["duration"]
    return total / 1000


def test_a_gif_shows_every_frame_for_its_time(tmp_path: Path) -> None:
    source = frames(12)
    path = write_video(source, tmp_path / "films" / "one.gif", fps=20)
    assert seconds(path) == pytest.approx(12 / 20)
    with Image.open(path) as film:
        assert film.n_frames == 12
        for index, frame in enumerate(source):
            film.seek(index)
            assert np.array_equal(np.asarray(film.convert("RGB")), frame)


def test_a_gif_that_is_too_fast_for_viewers_keeps_its_duration_with_fewer_frames(tmp_path: Path) -> None:
    path = write_video(frames(20), tmp_path / "one.gif", fps=100)
    with Image.open(path) as film:
        assert film.n_frames == 10
    assert seconds(path) == pytest.approx(20 / 100)


def test_large_frames_are_scaled_down_in_a_gif(tmp_path: Path) -> None:
    path = write_video(frames(2, 300, 1200), tmp_path / "one.gif", fps=10)
    with Image.open(path) as film:
        assert film.size == (GIF_LARGEST_SIDE, GIF_LARGEST_SIDE // 4)


def test_without_a_suffix_the_machine_decides(tmp_path: Path) -> None:
    path = write_video(frames(4), tmp_path / "step.1000", fps=10)
    assert path == tmp_path / ("step.1000.mp4" if has_ffmpeg else "step.1000.gif")
    assert path.stat().st_size > 0


@pytest.mark.skipif(has_ffmpeg, reason="ffmpeg is installed")
def test_an_mp4_without_ffmpeg_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pip install 'offbeat\[video\]'"):
        write_video(frames(4), tmp_path / "one.mp4", fps=10)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not has_ffmpeg, reason="needs the extra: video")
def test_an_mp4_has_the_frames_and_the_rate_that_were_given(tmp_path: Path) -> None:
    import imageio_ffmpeg

    path = write_video(frames(30, 49, 65), tmp_path / "one.mp4", fps=15)
    reader = imageio_ffmpeg.read_frames(str(path))
    description = next(reader)
    assert description["size"] == (64, 48)
    assert description["fps"] == 15
    assert len(list(reader)) == 30


@pytest.mark.parametrize(
    ("film", "fps", "message"),
    [
        ([], 10, "0 frames"),
        ([np.zeros((8, 8, 3), np.uint8)], 0, "fps=0"),
        ([np.zeros((8, 8, 3), np.float32)], 10, "frame 0 is float32"),
        ([np.zeros((8, 8), np.uint8)], 10, r"frame 0 is uint8 of shape \(8, 8\)"),
        ([np.zeros((8, 8, 3), np.uint8), np.zeros((9, 8, 3), np.uint8)], 10, r"frame 1 is uint8 of shape \(9, 8, 3\)"),
    ],
)
def test_invalid_frames_are_refused(tmp_path: Path, film: list[Array], fps: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write_video(film, tmp_path / "one.gif", fps)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["one.gif", pytest.param("one.mp4", marks=pytest.mark.skipif(not has_ffmpeg, reason="needs the extra: video"))],
)
def test_frames_are_written_as_they_arrive_and_an_incomplete_video_is_removed(name: str, tmp_path: Path) -> None:
    taken = []

    def coming(fail: bool) -> Iterator[Array]:
        for frame in frames(6):
            taken.append(frame)
            yield frame
        if fail:
            raise KeyboardInterrupt

    path = write_video(coming(fail=False), tmp_path / name, fps=10)
    assert len(taken) == 6
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        write_video(coming(fail=True), tmp_path / name, fps=10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("metadata", "rate"),
    [
        ({"render_fps": 20}, 20),
        ({"render_fps": np.float64(12.6)}, 13),
        ({"render_fps": 0.2}, 1),
        ({"render_fps": 0}, DEFAULT_RATE),
        ({"render_fps": float("nan")}, DEFAULT_RATE),
        ({"render_fps": None}, DEFAULT_RATE),
        ({}, DEFAULT_RATE),
        (None, DEFAULT_RATE),
    ],
)
def test_an_environment_is_shown_at_its_own_rate(metadata: Any, rate: int) -> None:
    assert frame_rate(SimpleNamespace(metadata=metadata)) == rate
    assert frame_rate(object()) == DEFAULT_RATE
