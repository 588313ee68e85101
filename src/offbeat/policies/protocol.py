"""The policy protocol: weights and observations in, actions out."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from offbeat.types import Array, Weights


class Policy(Protocol):
    """Selects actions for N environments at once; takes and returns NumPy arrays, whatever backend computes them.

    carry: the memory of each environment (leading axis N; empty (N, 0) for most policies). The collector resets the
    rows of environments whose episode ended to `initial_carry`. extras: values that an algorithm stores per step.
    """

    def load(self, weights: Weights) -> None: ...

    def initial_carry(self, num_envs: int) -> Array: ...

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        """obs (N, O) float32 -> action (N, A) float32, carry, extras. Deterministic if rng is None.

        step: environment steps so far, over all environments, for the decay of exploration. mask (N, K) bool: the
        allowed actions, or None for all.
        """
        ...
