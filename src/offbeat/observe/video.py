"""Writes videos from frames: MP4 if ffmpeg is available, else animated GIF."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable
from offbeat.errors import UsageError
from offbeat.types import Array

GIF_LARGEST_SIDE = 400
"""Frames with a longer side are scaled down, because the size of a GIF grows with its area."""
GIF_LARGEST_RATE = 50
"""GIFs measure time in hundredths of a second, and viewers slow down frames shorter than two of them."""
DEFAULT_RATE = 30
"""Frames per second of environments without `render_fps`."""


def frame_rate(env: Any) -> int:
    """The environment's frames per second: `render_fps` of its metadata, else DEFAULT_RATE."""
    rate = (getattr(env, "metadata", None) or {}).get("render_fps")
    if not isinstance(rate, int | float | np.number) or not np.isfinite(rate) or rate <= 0:
        return DEFAULT_RATE
    return max(1, round(float(rate)))


def write_video(frames: Iterable[Array], path: Path | str, fps: int) -> Path:
    """Writes frames, each (H, W, 3) uint8, to a video as they arrive; returns its path.

    To a path that does not end in .mp4 or .gif, .mp4 is added if the `video` extra is installed, else .gif. GIFs show
    at most 50 frames per second: of faster videos only every k-th frame is kept.
    """
    path = Path(path)
    if fps < 1:
        raise UsageError(f"fps={fps} is out of range: it must be at least 1")
    ffmpeg = importlib.util.find_spec("imageio_ffmpeg") is not None
    if path.suffix not in (".mp4", ".gif"):
        path = path.with_name(path.name + (".mp4" if ffmpeg else ".gif"))
    elif path.suffix == ".mp4" and not ffmpeg:
        raise UsageError(
            f"{path}: MP4 needs ffmpeg, which is missing; pip install 'offbeat[video]', or use a name ending in .gif"
        )
    checked = _checked(frames)
    first = next(checked)
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.remove_file(path)  # so that writing does not follow a link
    try:
        (_write_mp4 if path.suffix == ".mp4" else _write_gif)(first, checked, path, fps)
    except BaseException:
        path.unlink(missing_ok=True)  # an incomplete video
        raise
    return path


def _checked(frames: Iterable[Array]) -> Iterator[Array]:
    """Yields the frames; raises UsageError if there is none, or if one has another shape or dtype."""
    shape = None
    for index, frame in enumerate(frames):
        shape = frame.shape if shape is None else shape
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != shape:
            raise UsageError(
                f"frame {index} is {frame.dtype} of shape {frame.shape}; every frame must be uint8 of one shape "
                f"(H, W, 3), as an environment made with render_mode='rgb_array' gives"
            )
        yield frame
    if shape is None:
        raise UsageError("there are 0 frames to write, but a video needs at least one; render at least one step")


def _write_mp4(first: Array, others: Iterable[Array], path: Path, fps: int) -> None:
    import imageio_ffmpeg

    height, width = first.shape[0] // 2 * 2, first.shape[1] // 2 * 2  # H.264 needs even sides
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps, macro_block_size=2)
    writer.send(None)
    try:
        for frame in itertools.chain([first], others):
            writer.send(np.ascontiguousarray(frame[:height, :width]))
    finally:
        writer.close()


def _write_gif(first: Array, others: Iterable[Array], path: Path, fps: int) -> None:
    from PIL import Image

    every = -(-fps // GIF_LARGEST_RATE)
    height, width = first.shape[:2]
    scale = min(1.0, GIF_LARGEST_SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))

    def image(frame: Array) -> Image.Image:
        picture = Image.fromarray(frame)
        return picture if scale == 1.0 else picture.resize(size, Image.Resampling.LANCZOS)

    following = (image(frame) for frame in itertools.islice(others, every - 1, None, every))
    image(first).save(path, save_all=True, append_images=following, duration=1000 * every / fps, loop=0)
