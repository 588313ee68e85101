"""An agent for a vector of three numbers and two actions, and a few updates of it."""

from __future__ import annotations

from typing import Any

import numpy as np

import offbeat
from specs import vector_spec

SPEC = vector_spec(3, 2)
SMALL: dict[str, Any] = {"hidden": (4,), "batch_size": 4, "random_steps": 0}


def agent(algorithm: Any = "td3", **settings: Any) -> offbeat.Agent:
    return offbeat.Agent(algorithm, SPEC, **SMALL, **settings)


def observed(made: offbeat.Agent) -> None:
    """Gives the agent a few transitions."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        made.observe(rng.random(3), np.zeros(2), 1.0, rng.random(3), False, False)


def updated(made: offbeat.Agent, count: int = 1) -> None:
    """Makes updates with a few transitions."""
    observed(made)
    made.update(count)
