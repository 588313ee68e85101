"""Batches of random sequences, with episode ends inside, for backends with recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.algorithms.configs.groups import learned_rows
from offbeat.types import Batches, EnvSpec
from small_backends import batches, make

SMALL: dict[str, Any] = {"network": "gru", "recurrent_size": 6, "sequence_length": 4, "batch_size": 3, "burn_in": 2}


def recurrent(algorithm: str, spec: EnvSpec, backend: str, precision: str = "float64", **settings: Any) -> Any:
    """A backend with recurrent networks: 6 units below one hidden layer of 8."""
    return make(algorithm, spec, backend, precision, **{**SMALL, **settings})


def sequences(learner: Any, count: int, weight: bool = False, share: float = 0.25) -> Batches:
    """One batch for each of `count` updates. share: of the steps that begin anew, beside the first of each sequence."""
    config, spec, rng = learner.config, learner.spec, np.random.default_rng(9)
    recurrence, size, ahead = config.recurrence, config.replay.batch_size, config.returns.n_step - 1
    carry = learner.state_size if recurrence.start_state == "stored" else 0
    steps, width = recurrence.burn_in + recurrence.sequence_length, spec.observation_size + 1 + carry
    packed = rng.standard_normal((count, steps + ahead, size, width + spec.observation_size + (ahead > 0)))
    broken = rng.random(packed.shape[:3]) < share
    broken[:, 0] = True
    packed[..., spec.observation_size] = broken
    packed[~broken, spec.observation_size + 1 : width] = 0.0
    if ahead:
        packed[..., -1] = rng.integers(0, ahead + 1, packed.shape[:3])
    given = batches(spec, count, learned_rows(config), weight)
    columns = {**given.columns, "obs": packed[:, :steps, :, :width], "next_obs": packed}
    return Batches(columns, given.rows, given.weight)
