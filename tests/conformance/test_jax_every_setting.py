"""JAX learns what torch learns with every setting of every algorithm of replay, through an agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_every_setting import CHANGED, FROM_ROLLOUTS, SMALL, UPDATES, change_of, rows, with_states

import offbeat
from offbeat.algorithms.registry import ALGORITHMS
from offbeat.settings import Setting, own_settings
from specs import choice_spec, vector_spec

TORCH_ALONE = ("actor", "critic", "gradients", "compile")
"""A user's own torch modules, and how torch computes."""
OWN_RANDOMNESS = ("critic_dropout",)
CASES = [
    pytest.param(algorithm, each, id=f"{algorithm}-{each.name}")
    for algorithm in ALGORITHMS
    if algorithm not in FROM_ROLLOUTS
    for each in own_settings(algorithm)
    if each.name in CHANGED and each.name not in (*TORCH_ALONE, *OWN_RANDOMNESS)
    if not each.name.startswith("exploration")
]


def _learned(algorithm: str, backend: str, settings: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    spec = choice_spec(5, 3) if algorithm == "dqn" else vector_spec(5, 2)
    small = {**SMALL, **({"actor_every": 1, "critics": 3} if algorithm == "redq" else {}), **settings}
    agent = offbeat.Agent(algorithm, spec, backend=backend, precision="float64", **small)
    agent.add(with_states(rows(spec), agent.experience.schema))
    agent.training.learn(UPDATES)
    return agent.learner.arrays(), agent.learner.drain()


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "setting"), CASES)
def test_jax_learns_what_torch_learns(algorithm: str, setting: Setting) -> None:
    besides, value = change_of(algorithm, setting)
    torch, jax = (_learned(algorithm, name, {**besides, setting.name: value}) for name in ("torch", "jax"))
    for left, right in zip(torch, jax, strict=True):
        assert left.keys() == right.keys()
        for name, array in left.items():
            np.testing.assert_allclose(right[name], array, rtol=1e-9, atol=1e-9, err_msg=name)
