"""Versions of Python and of the packages that a run uses, for its config and checkpoints."""

from __future__ import annotations

import functools
import importlib.metadata
import platform

PACKAGES = ("torch", "jax", "numpy", "gymnasium", "mujoco")


def versions() -> dict[str, str]:
    """The installed version of each package, by name."""
    import offbeat

    own = {"offbeat": offbeat.__version__, "python": platform.python_version()}
    return own | {package: _installed(package) for package in PACKAGES}


@functools.cache
def _installed(package: str) -> str:
    """Read once: a package's metadata take milliseconds to parse, and every checkpoint names the versions."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
