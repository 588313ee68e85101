"""Small SAC learners, and batches to update them with, for tests that compare what they have learned."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from driven_learner import Learner
from offbeat.learn.statistics import Preprocessor
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec
from specs import Transitions, random_transitions, vector_spec

SPEC = vector_spec(5, 2)


def make(
    spec: EnvSpec = SPEC,
    planned: int | None = None,
    precision: str = "float64",
    backend: str = "torch",
    preprocessor: Preprocessor | None = None,
    **settings: Any,
) -> Learner:
    layers = {} if "actor" in settings and "critic" in settings else {"hidden": (16, 16)}  # own networks have theirs
    settings = {**layers, "batch_size": 32, **settings}
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {"planned_updates": planned, "precision": precision, "preprocessor": preprocessor}
    options["backend"] = backend
    return Learner("sac", make_learner_config("sac", **settings), spec, rng=rng, **options)


def batches(count: int, spec: EnvSpec = SPEC, size: int = 32) -> list[tuple[Transitions, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [
        (random_transitions(rng, spec, size, np.float64), rng.standard_normal((2, size, spec.action_size)))
        for _ in range(count)
    ]


def updated(learner: Learner, count: int = 1, **changes: Any) -> Learner:
    for batch, noise in batches(count, learner.spec):
        learner.update_once(dataclasses.replace(batch, **changes) if changes else batch, noise)
    return learner


def same(left: Learner, right: Learner) -> bool:
    return all(np.array_equal(array, right.arrays()[name]) for name, array in left.arrays().items())
