"""Offbeat: off-policy and asynchronous reinforcement learning. Heavy libraries are imported only where used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offbeat import threads

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "Callback",
    "RunInterrupted",
    "__version__",
    "convert",
    "evaluate",
    "load_policy",
    "resume",
    "train",
]

if TYPE_CHECKING:
    from offbeat.errors import RunInterrupted
    from offbeat.run.agent import Agent
    from offbeat.run.api import resume, train
    from offbeat.run.callbacks import Callback
    from offbeat.run.convert import convert
    from offbeat.run.load_policy import load_policy
    from offbeat.run.saved_policy import evaluate

_MODULES = {
    "train": "offbeat.run.api",
    "resume": "offbeat.run.api",
    "convert": "offbeat.run.convert",
    "Agent": "offbeat.run.agent",
    "Callback": "offbeat.run.callbacks",
    "RunInterrupted": "offbeat.errors",
    "load_policy": "offbeat.run.load_policy",
    "evaluate": "offbeat.run.saved_policy",
}

threads.limit_spinning()  # must run before torch is loaded


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
