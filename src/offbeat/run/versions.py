"""Versions of Python and of the packages that a run uses, for its config and checkpoints."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = ("torch", "jax", "numpy", "gymnasium", "mujoco")


def versions() -> dict[str, str]:
    """The installed version of each package, by name."""
    import offbeat

    installed = {"offbeat": offbeat.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed
