"""The random generators that a whole process shares."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def process_randomness() -> dict[str, Any]:
    """Their states."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 - user code draws from it
    return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}


def set_process_randomness(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
