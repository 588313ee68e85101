"""Small SAC learners, and batches to update them with, for tests that compare what they have learned."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from offbeat.algorithms.configs import SAC
from offbeat.learn.torch import Learner
from offbeat.types import EnvSpec, Transitions
from specs import random_transitions, vector_spec

SPEC = vector_spec(5, 2)


def make(spec: EnvSpec = SPEC, planned: int | None = None, precision: str = "float64", **settings: Any) -> Learner:
    layers = {} if "actor" in settings and "critic" in settings else {"hidden": (16, 16)}  # own networks have theirs
    settings = {**layers, "batch_size": 32, **settings}
    rng = np.random.default_rng(1)
    return Learner("sac", SAC(**settings), spec, rng=rng, planned_updates=planned, precision=precision)


def batches(count: int, spec: EnvSpec = SPEC, size: int = 32) -> list[tuple[Transitions, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [
        (random_transitions(rng, spec, size, np.float64), rng.standard_normal((2, size, spec.action_size)))
        for _ in range(count)
    ]


def updated(learner: Learner, count: int = 1, **changes: Any) -> Learner:
    for batch, noise in batches(count, learner.spec):
        learner.update(dataclasses.replace(batch, **changes) if changes else batch, noise)
    return learner


def same(left: Learner, right: Learner) -> bool:
    return all(np.array_equal(array, right.arrays()[name]) for name, array in left.arrays().items())
