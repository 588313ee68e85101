"""Small backends of every algorithm that learns from replay, on torch and JAX, and batches to update them with."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from offbeat.algorithms.registry import find
from offbeat.learn.backend import Backend, UpdateResult
from offbeat.settings import make_learner_config
from offbeat.types import Batches, EnvSpec
from specs import choice_spec, random_transitions, vector_spec

BOX, STATE, CHOICE = vector_spec(5, 2), vector_spec(5, 2, state=3), choice_spec(5, 3)
MASKED = dataclasses.replace(choice_spec(5, 4), mask_key="mask", mask_from="info")
CHOICE_WITH_STATE = dataclasses.replace(
    CHOICE, **{name: getattr(STATE, name) for name in ("state_key", "state_from", "state")}
)
ROWS = 16
CASES: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "sac": ("sac", STATE, {}),
    "sac with dropout": ("sac", BOX, {"critic_dropout": 0.2, "critic_layer_norm": True}),
    "sac of choices": ("sac", CHOICE, {}),
    "redq": ("redq", BOX, {"actor_every": 2, "critics": 3}),
    "td3": ("td3", BOX, {}),
    "ddpg": ("ddpg", STATE, {}),
    "dqn": ("dqn", CHOICE, {}),
}
"""Algorithm, environment and settings by name."""
RATES = {"actor": 1e-2, "critic": 2e-2, "temperature": 3e-2}


def make(
    algorithm: str, spec: EnvSpec, backend: str = "torch", precision: str = "float64", seed: int = 1, **settings: Any
) -> Any:
    """A backend with first weights from `seed`. One hidden layer, because JAX compiles it faster than two."""
    config = make_learner_config(algorithm, **{"hidden": (8,), "batch_size": ROWS, **settings})
    record, rng = find(algorithm), np.random.default_rng(seed)
    arguments = (record.module(backend, spec), config, spec)
    found: Backend
    if backend == "jax":
        from offbeat.learn.jax import JaxBackend

        found = JaxBackend(*arguments, rng=rng, precision=precision, acts_with=record.acts_with)
    else:
        from offbeat.learn.torch import TorchBackend

        found = TorchBackend(*arguments, rng=rng, precision=precision, acts_with=record.acts_with)
    assert found.name == backend
    return found


def batches(spec: EnvSpec, count: int, rows: int = ROWS, weight: bool = False, **extras: np.ndarray) -> Batches:
    """weight: with importance weights. Where there are masks, an ended game may leave no action."""
    rng = np.random.default_rng(7)
    each = [random_transitions(rng, spec, rows, np.float64) for _ in range(count)]
    names = ["obs", "action", "reward", "discount", "next_obs", *(("state", "next_state") if spec.state_size else ())]
    columns = {name: np.stack([getattr(batch, name) for batch in each]) for name in names}
    if spec.mask_key:
        columns |= _masks(rng, columns)
    weights = rng.uniform(0.1, 2.0, (count, rows)) if weight else None
    return Batches({**columns, **extras}, np.zeros((count, rows), np.int64), weights)


def _masks(rng: np.random.Generator, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """From one to all of 4 actions are allowed, the taken one too, and none after some ends."""
    shape = (*columns["reward"].shape, 4)
    mask, next_mask = rng.random((2, *shape)) < 0.5
    np.put_along_axis(mask, columns["action"].astype(int), True, -1)
    np.put_along_axis(next_mask, rng.integers(4, size=shape)[..., :1], True, -1)
    next_mask[(columns["discount"] == 0.0) & (rng.random(shape[:-1]) < 0.7)] = False
    return {"mask": mask, "next_mask": next_mask}


def learn(learner: Any, given: Batches, updates: int = 0, **named: Any) -> UpdateResult:
    """One update for each batch, with rates that differ by group and fall from update to update."""
    draws = np.random.default_rng(8).standard_normal((updates + len(given), *learner.noise_shape))[updates:]
    rates = [
        {group: rate / (1.0 + 0.1 * index) for group, rate in RATES.items()}
        for index in range(updates, updates + len(given))
    ]
    options = {"td_errors": False, "updates": updates, "seed": 3 + updates, **named}
    found: UpdateResult = learner.update(given, draws, rates, **options)
    return found


def part(given: Batches, rows: slice) -> Batches:
    weight = None if given.weight is None else given.weight[rows]
    return Batches({name: column[rows] for name, column in given.columns.items()}, given.rows[rows], weight)


def metrics_of(found: UpdateResult) -> dict[str, list[float]]:
    """Without those that had no value, as a delayed actor's."""
    metrics = {name: [float(value) for value in values] for name, values in found.metrics.items()}
    return {name: values for name, values in metrics.items() if values}


def same(left: Any, right: Any) -> bool:
    """Whether two backends have the same state, digit for digit."""
    arrays, others = left.arrays(), right.arrays()
    return arrays.keys() == others.keys() and all(np.array_equal(array, others[name]) for name, array in arrays.items())
