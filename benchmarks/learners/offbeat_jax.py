"""Offbeat's learner with `--backend jax`, otherwise as in learners/offbeat.py."""

from __future__ import annotations

from typing import Any

import jax

import offbeat
from learners import offbeat as with_torch


class Contestant(with_torch.Contestant):
    def __init__(self, threads: int, capacity: int, shape: dict[str, Any]) -> None:
        super().__init__(threads, capacity, shape, backend="jax")
        self.versions = {"offbeat": offbeat.__version__, "jax": jax.__version__}
        self.setting += ", with --backend jax"

    def finish(self) -> None:
        """Updates go on while the next batches are drawn; waits for the last ones."""
        jax.block_until_ready(self._agent.training.learner.backend.state)
