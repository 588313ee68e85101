"""Frames to a film: MP4 where ffmpeg is at hand, an animated GIF everywhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offbeat.errors import UsageError
from offbeat.types import Array

GIF_LARGEST_SIDE = 400
"""A GIF's size grows with its area; frames with a longer side than this are scaled down."""
GIF_LARGEST_RATE = 50
"""GIFs count time in hundredths of a second, and viewers slow down whatever is shown for less than two of them."""


def write_video(frames: Sequence[Array], path: Path | str, fps: int) -> Path:
    """Writes frames, each (H, W, 3) uint8, and returns the path of the film.

    A path that ends in .mp4 or .gif is taken as it is. To any other, .mp4 is added where the `video` extra is installed
    and .gif where it is not. GIFs show at most 50 frames a second: of faster films only every k-th frame is kept.
    """
    path = Path(path)
    _check(frames, fps)
    ffmpeg = importlib.util.find_spec("imageio_ffmpeg") is not None
    if path.suffix not in (".mp4", ".gif"):
        path = path.with_name(path.name + (".mp4" if ffmpeg else ".gif"))
    elif path.suffix == ".mp4" and not ffmpeg:
        raise UsageError(
            f"{path}: MP4 needs ffmpeg, which is missing; pip install 'offbeat[video]', or use a name ending in .gif"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".mp4":
        _write_mp4(frames, path, fps)
    else:
        _write_gif(frames, path, fps)
    return path


def _check(frames: Sequence[Array], fps: int) -> None:
    if not len(frames):
        raise UsageError("there are 0 frames to write; a film needs at least one")
    if fps < 1:
        raise UsageError(f"fps={fps} is out of range: it must be at least 1")
    for index, frame in enumerate(frames):
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != frames[0].shape:
            raise UsageError(
                f"frame {index} is {frame.dtype} of shape {frame.shape}; every frame must be uint8 of one shape "
                f"(H, W, 3), as an environment made with render_mode='rgb_array' gives"
            )


def _write_mp4(frames: Sequence[Array], path: Path, fps: int) -> None:
    import imageio_ffmpeg

    height, width = frames[0].shape[0] // 2 * 2, frames[0].shape[1] // 2 * 2  # H.264 wants even sides
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps, macro_block_size=2)
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame[:height, :width]))
    finally:
        writer.close()


def _write_gif(frames: Sequence[Array], path: Path, fps: int) -> None:
    from PIL import Image

    every = -(-fps // GIF_LARGEST_RATE)
    images = [Image.fromarray(frame) for frame in frames[::every]]
    longest = max(images[0].size)
    if longest > GIF_LARGEST_SIDE:
        width, height = (max(1, round(side * GIF_LARGEST_SIDE / longest)) for side in images[0].size)
        images = [image.resize((width, height), Image.Resampling.LANCZOS) for image in images]
    images[0].save(path, save_all=True, append_images=images[1:], duration=1000 * every / fps, loop=0)
