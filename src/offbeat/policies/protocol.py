"""What acts."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from offbeat.types import Array, Weights


class Policy(Protocol):
    """Acts for N environments at once, in NumPy arrays whatever computes it.

    `carry` is the per-environment memory (leading axis N; empty (N, 0) for most policies); the collector sets the rows
    of environments whose episode ended back to `initial_carry`. `extras` holds what an algorithm stores per step.
    """

    def load(self, weights: Weights) -> None: ...

    def initial_carry(self, num_envs: int) -> Array: ...

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        """obs (N, O) float32 -> action (N, A) float32, carry, extras. rng None acts deterministically.

        step: environment steps so far, over all environments, by which exploration may decay. mask (N, K) bool: the
        actions that are allowed; no other is taken.
        """
        ...
