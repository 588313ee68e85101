"""Batches of sequences in the learner: only the observations in packed columns are normalised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from driven_learner import Learner
from offbeat.settings import make_learner_config
from sequence_log import PACKED, SETTINGS, SPEC, filled, over

OBSERVATION = 3


def learner(precision: str = "float32", **settings: Any) -> Learner:
    config = make_learner_config("sac", hidden=(8,), **settings)
    return Learner("sac", config, SPEC, rng=np.random.default_rng(0), precision=precision)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 3])
def test_observations_in_packed_columns_are_normalised_and_flags_and_states_are_not(n: int, precision: str) -> None:
    shard, _ = filled(60, 50)
    columns = over(shard, settings=replace(SETTINGS, n_step=n)).draw(np.random.default_rng(0), 2).columns
    given = {name: column.copy() for name, column in columns.items()}
    made = learner(precision, normalise_observations=True)
    made.observe(shard.read(0, 50))
    inputs, normalise = made._inputs(columns), made.observations
    assert normalise is not None
    for name, starts in (("obs", (0,)), ("next_obs", (0, PACKED))):
        expected = given[name].astype(precision)
        for start in starts:
            part = slice(start, start + OBSERVATION)
            expected[..., part] = normalise(given[name][..., part])
        np.testing.assert_array_equal(inputs[name], expected)
        assert inputs[name].dtype == precision
        assert not np.array_equal(inputs[name], given[name])
        np.testing.assert_array_equal(columns[name], given[name])
    assert made.states is not None
    np.testing.assert_array_equal(inputs["state"], made.states(given["state"]))


def test_without_a_normaliser_packed_columns_are_passed_on_as_they_are() -> None:
    columns = over(filled(60, 50)[0]).draw(np.random.default_rng(0), 2).columns
    inputs = learner()._inputs(columns)
    assert all(inputs[name] is column for name, column in columns.items())
