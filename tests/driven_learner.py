"""Learners by the name of their algorithm, one batch at a time, for tests that look into their state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from offbeat.algorithms.registry import find
from offbeat.learn import learner
from offbeat.learn.rollout_columns import learnable
from offbeat.learn.statistics import Preprocessor
from offbeat.learn.torch import TorchBackend
from offbeat.types import Array, Batches, EnvSpec, RolloutBatch
from specs import Transitions


class Learner(learner.Learner):
    """A learner whose state is in reach, in torch unless another backend is named."""

    backend: Any

    def __init__(
        self,
        algorithm: str,
        config: Any,
        spec: EnvSpec,
        *,
        rng: np.random.Generator,
        planned_updates: int | None = None,
        device: str = "cpu",
        precision: str = "float32",
        preprocessor: Preprocessor | None = None,
        backend: str = "torch",
    ) -> None:
        record = find(algorithm)
        self.algorithm = record.module(backend, spec)
        own = {"device": device, "precision": precision, "acts_with": record.acts_with}
        own |= {"scheduled": tuple(record.scheduled)} if backend == "jax" else {}
        made = _kind(backend)(self.algorithm, config, spec, rng=rng, **own)
        super().__init__(
            config,
            spec,
            made,
            groups=record.groups,
            scheduled=record.scheduled,
            seed=int(rng.integers(2**62)),
            dtype=np.float64 if precision == "float64" else np.float32,
            preprocessor=preprocessor,
        )
        self.planned_updates = planned_updates
        self.dtype, self.noise_shape = made.dtype, made.noise_shape

    @property
    def state(self) -> Any:
        """All that learning changes. In JAX it is another object after each update."""
        return self.backend.state

    def update_once(self, batch: Transitions, noise: Array, weight: Array | None = None) -> Array:
        """One update; returns the absolute TD errors (B,)."""
        errors = self.update(stacked(batch, weight), np.asarray(noise)[None], td_errors=True)
        assert errors is not None
        return errors[0]

    def steps_of(self, rollout: RolloutBatch) -> Any:
        """The rollout as the algorithm gets it."""
        inputs = RolloutBatch(self._inputs(rollout.columns), rollout.valid)
        return self.backend._steps(learnable(inputs, self.reward_scale, self.config.largest_reward, self._dtype))


def _kind(backend: str) -> Any:
    if backend == "torch":
        return TorchBackend
    from offbeat.learn.jax import JaxBackend

    return JaxBackend


def stacked(batch: Transitions, weight: Array | None = None) -> Batches:
    """One batch as K = 1 batches."""
    return stack([batch], None if weight is None else weight[None])


def stack(each: Sequence[Transitions], weight: Array | None = None) -> Batches:
    """K batches as one value. weight: (K, B)."""
    names = [column.name for column in fields(Transitions) if column.name != "rows"]
    columns = {name: [getattr(batch, name) for batch in each] for name in names}
    present = {name: np.stack(column) for name, column in columns.items() if column[0] is not None}
    return Batches(present, np.stack([batch.rows for batch in each]), weight)
