"""Offbeat: off-policy and asynchronous reinforcement learning. Heavy libraries are imported where they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offbeat import threads

__version__ = "0.1.0"
__all__ = ["Agent", "Callback", "RunInterrupted", "__version__", "evaluate", "load_policy", "resume", "train"]

if TYPE_CHECKING:
    from offbeat.errors import RunInterrupted
    from offbeat.run.agent import Agent
    from offbeat.run.api import resume, train
    from offbeat.run.callbacks import Callback
    from offbeat.run.policy import load_policy
    from offbeat.run.saved import evaluate

_WHERE = {
    "train": "offbeat.run.api",
    "resume": "offbeat.run.api",
    "Agent": "offbeat.run.agent",
    "Callback": "offbeat.run.callbacks",
    "RunInterrupted": "offbeat.errors",
    "load_policy": "offbeat.run.policy",
    "evaluate": "offbeat.run.saved",
}

threads.sleep_soon()  # before anything loads torch


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
