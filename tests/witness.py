"""An algorithm that learns nothing: its TD errors are a signature of each row, as the backend's update was given it."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.algorithms.registry import Algorithm
from offbeat.replay.uniform import UniformReplay
from own_parts.expectile import RATES, Expectile
from own_parts.expectile import init as init
from own_parts.expectile import policy_description as policy_description

PARTS = {
    "obs": np.array([1.0, np.pi]),
    "next_obs": np.array([np.e, np.sqrt(2)]),
    "action": np.array([np.sqrt(3), np.sqrt(5)]),
    "reward": np.array([np.sqrt(7)]),
    "discount": np.array([100 * np.sqrt(11)]),
}
OFFSET = 10.0
"""Keeps a signature positive: replay gets the magnitudes of TD errors."""


def signature(row: Any) -> Any:
    """(B,) of columns (B, ...), as arrays of any library."""
    columns = {name: getattr(row, name) for name in PARTS}
    vectors = {name: column[:, None] if column.ndim == 1 else column for name, column in columns.items()}
    terms = [vectors[name][:, i] * float(each) for name, factors in PARTS.items() for i, each in enumerate(factors)]
    return sum(terms) + OFFSET


def update(state: Any, config: Any, spec: Any, batch: Any, noise: Any, rates: Any, updates: Any) -> Any:
    return {"critic_loss": batch.reward.mean()}, signature(batch)


class Witnessed(UniformReplay):
    """Keeps the TD errors of all batches."""

    wants_td_errors = True

    def __init__(self, schema: Any, settings: Any) -> None:
        super().__init__(schema, settings)
        self.seen: list[np.ndarray] = []

    def feedback(self, rows: np.ndarray, td_errors: np.ndarray) -> None:
        assert rows.shape == td_errors.shape
        self.seen.append(td_errors.ravel())


ALGORITHM = Algorithm("witness", Expectile, {"torch": __name__, "jax": "witness_jax"}, "replay", ("box",), RATES)
