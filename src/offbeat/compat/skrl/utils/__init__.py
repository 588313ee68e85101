"""`set_seed`, and a timer of a block of code."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np
import torch

from offbeat.compat.skrl.framework import config, logger
from offbeat.errors import UsageError


def set_seed(seed: int | None = None, deterministic: bool = False) -> int:
    """Seeds Python, NumPy, torch, JAX, and what agents, memories and environments derive from it; returns the seed.

    None draws one. Under torchrun, each rank adds its number. deterministic: torch then uses deterministic algorithms
    only, and raises where there is none.
    """
    seed = int.from_bytes(os.urandom(4), "little") % 2**31 if seed is None else int(seed)
    if not 0 <= seed < 2**32:
        raise UsageError(f"set_seed: seed={seed} is out of range: NumPy takes 0 to {2**32 - 1}")
    seed += config.torch.rank if config.torch.is_distributed else 0
    logger.info(f"Seed: {seed}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - for a user's code that draws from it
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(deterministic)
    config.torch.key = config.jax.key = seed
    return seed


class ScopedTimer:
    """Measures a block of code: `with ScopedTimer() as timer: ...`. Inside the block, the time so far."""

    def __enter__(self) -> ScopedTimer:
        self._end: float | None = None
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._end = time.perf_counter()

    @property
    def elapsed_time(self) -> float:
        """Seconds."""
        return (time.perf_counter() if self._end is None else self._end) - self._start

    @property
    def elapsed_time_ms(self) -> float:
        """Milliseconds."""
        return 1e3 * self.elapsed_time
