"""The backends that an algorithm has, and what a network gives on each, for the suites that run on both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import offbeat
from offbeat.algorithms.registry import find

BACKENDS = ("torch", "jax")


def backends_of(algorithm: str, actions: str = "box") -> list[str]:
    """Those that have the algorithm for this kind of actions."""
    modules = find(algorithm).modules
    return [name for name in BACKENDS if name in modules and _has(modules[name], actions)]


def _has(module: Any, actions: str) -> bool:
    return not isinstance(module, Mapping) or actions in module


def output_of(agent: offbeat.Agent, network: str, *inputs: np.ndarray) -> np.ndarray:
    """What a network of the agent's state gives for inputs (B, ...)."""
    state = agent.learner.backend.state
    part = state[network] if isinstance(state, Mapping) else getattr(state, network)
    if agent.learner.backend.name == "jax":
        return np.asarray(part(*map(np.float32, inputs)))
    import torch

    with torch.inference_mode():
        return np.asarray(part(*(torch.from_numpy(np.float32(each)) for each in inputs)))
