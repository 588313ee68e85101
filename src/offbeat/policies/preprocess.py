"""A policy behind a user's own observation preprocessor, whose state comes with the weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.errors import OffbeatError
from offbeat.policies.protocol import Policy
from offbeat.types import Array, Weights

PREFIX = "preprocessor/"
"""Of the preprocessor's arrays among the weights."""


class Preprocessed:
    """Transforms observations before the policy acts on them."""

    def __init__(self, policy: Policy, preprocessor: Any) -> None:
        self._policy, self._preprocessor = policy, preprocessor

    def load(self, weights: Weights) -> None:
        own = {name.removeprefix(PREFIX): array for name, array in weights.items() if name.startswith(PREFIX)}
        self._preprocessor.restore(own)
        self._policy.load(weights)

    def initial_carry(self, num_envs: int) -> Array:
        return self._policy.initial_carry(num_envs)

    def act(
        self, obs: Array, carry: Array, rng: np.random.Generator | None, step: int = 0, mask: Array | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        seen = np.asarray(self._preprocessor(obs), np.float32)
        if seen.shape != obs.shape:
            raise OffbeatError(
                f"your preprocessor returned shape {seen.shape} for observations {obs.shape}; keep the shape"
            )
        return self._policy.act(seen, carry, rng, step, mask)
