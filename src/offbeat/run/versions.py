"""The versions that a run was made with, for its config and its checkpoints."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = ("torch", "numpy", "gymnasium", "mujoco")


def versions() -> dict[str, str]:
    import offbeat

    found = {"offbeat": offbeat.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
