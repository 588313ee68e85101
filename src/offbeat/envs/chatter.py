"""What other libraries print about their own files while an environment is made, and nobody who trains can act on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

GYMNASIUM_MUJOCO = "gymnasium.envs.mujoco"


@contextlib.contextmanager
def without_chatter(entry_point: object) -> Iterator[None]:
    """While Gymnasium makes a MuJoCo environment of its own, drops MuJoCo's warnings that its model file is old.

    Every other warning is printed as MuJoCo prints it. A handler that a user has installed is left alone.
    """
    if not str(entry_point).startswith(GYMNASIUM_MUJOCO):
        yield
        return
    try:
        import mujoco
    except ImportError:  # Gymnasium says so, and how to install it
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
