"""Hides warnings of MuJoCo about Gymnasium's own model files, which a user cannot change."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

GYMNASIUM_MUJOCO = "gymnasium.envs.mujoco"


@contextlib.contextmanager
def hide_model_file_warnings(entry_point: object) -> Iterator[None]:
    """Drops MuJoCo's deprecation warnings about a model file while Gymnasium creates one of its MuJoCo environments.

    Prints every other warning as MuJoCo does. Does nothing if the user installed a warning handler.
    """
    if not str(entry_point).startswith(GYMNASIUM_MUJOCO):
        yield
        return
    try:
        import mujoco
    except ImportError:  # Gymnasium raises an error that explains how to install it
        yield
        return
    if getattr(mujoco, "get_mju_user_warning", lambda: True)() is not None:
        yield
        return
    mujoco.set_mju_user_warning(_warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def _warn(message: str) -> None:
    if "is deprecated" not in message:
        print(f"WARNING: {message}\n", file=sys.stderr)
