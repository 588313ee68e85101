"""Offbeat's learner with `--backend jax`, otherwise as in learners/offbeat.py."""

from __future__ import annotations

import itertools
import os
from typing import Any

import jax

import offbeat
from learners import offbeat as with_torch
from offbeat.run.tuning import SLOW_GRAIN


class Contestant(with_torch.Contestant):
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        largest = shape["batch"] * max(first * second for first, second in itertools.pairwise(shape["hidden"]))
        chosen = max(1, min(threads, largest // SLOW_GRAIN))  # as a run chooses, which draws batches on another core
        os.environ["PJRT_NPROC"] = str(chosen)
        super().__init__(threads, capacity, shape, backend="jax")
        self.versions = {"offbeat": offbeat.__version__, "jax": jax.__version__}
        self.setting += f", with --backend jax; {chosen} of {threads} threads for XLA"

    def finish(self) -> None:
        """Updates go on while the next batches are drawn; waits for the last ones."""
        jax.block_until_ready(self._agent.training.learner.backend.state)
