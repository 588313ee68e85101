"""Learners on one device and on two, in a process whose CPU counts as two; tests/learn/test_jax_devices.py runs it.

Prints, for each algorithm that is named, the largest difference after ten updates, and how many devices have arrays.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

import offbeat
from offbeat.learn.jax_devices import Devices
from offbeat.types import EnvSpec
from specs import choice_spec, vector_spec

CASES: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "sac": ("sac", vector_spec(3, 2), {"batch_size": 8, "critic_dropout": 0.2, "max_grad_norm": 0.5}),
    "dqn": ("dqn", choice_spec(3, 4), {"batch_size": 8}),
    # 21 rows and minibatches of 11 and 10, which two devices cannot divide equally; 24 rows and minibatches of 12.
    "ppo": ("ppo", choice_spec(3, 4), {"rollout_steps": 7, "minibatches": 2, "epochs": 2}),
    "appo": ("appo", vector_spec(3, 2), {"rollout_steps": 8, "minibatches": 2, "epochs": 2}),
}
MOVE = ("actor/0/weight", "critic/0/weight")


def learned(algorithm: str, spec: EnvSpec, devices: int, own: dict[str, Any]) -> offbeat.Agent:
    """An agent after ten updates with the rows of 12 steps, or after a turn with a rollout of three environments."""
    off_policy = {"random_steps": 0, "warmup_steps": 8, "capacity": 100} if "batch_size" in own else {}
    settings = {"hidden": (8,), "backend": "jax", "devices": devices, "precision": "float64", **off_policy, **own}
    agent = offbeat.Agent(algorithm, spec, **settings)
    rng = np.random.default_rng(0)
    for _ in range(own.get("rollout_steps", 12)):
        obs, following = rng.standard_normal((2, 3, 3))
        action = agent.act(obs) if "rollout_steps" in own else spec.to_environment(spec.random_actions(rng, 3))
        agent.observe(obs, action, rng.standard_normal(3), following, rng.random(3) < 0.2, [False] * 3)
    agent.update(None if "rollout_steps" in own else 10)
    assert agent.learner.updates == (10 if off_policy else 4)
    return agent


def compare(name: str) -> dict[str, Any]:
    algorithm, spec, own = CASES[name]
    one, two = (learned(algorithm, spec, devices, own) for devices in (1, 2))
    first, second = one.learner.arrays(), two.learner.arrays()
    settings = {"hidden": (8,), "backend": "jax", "precision": "float64", **own}
    new = offbeat.Agent(algorithm, spec, **settings).learner.arrays()
    acting = two.learner.weights()
    backend: Any = two.learner.backend
    found = {
        "device": backend.device,
        "devices": sorted({len(each.sharding.device_set) for each in jax.tree.leaves(backend.state)}),
        "whole": all(each.sharding.is_fully_replicated for each in jax.tree.leaves(backend.state)),
        "learned": all(np.abs(array - new[name]).max() > 0 for name, array in second.items() if name in MOVE),
        "difference": max(float(np.abs(first[name] - second[name]).max()) for name in first),
        "acting": max(float(np.abs(acting[name] - each).max()) for name, each in one.learner.weights().items()),
    }
    if name == "dqn":
        found |= parts_of(backend)
    two.learner.restore(first)
    again = two.learner.arrays()
    return found | {"restored": all(np.array_equal(first[name], again[name]) for name in first)}


def parts_of(backend: Any) -> dict[str, Any]:
    """What each device got of the last batches, and whether the compiled loop adds up across devices."""
    shapes = {
        name.strip(): [array.shape, sorted({part.data.shape for part in array.addressable_shards})]
        for name, array in _given[-1].items()
    }
    with backend._precision():
        (loop,) = backend._loops.values()
        program = loop.lower(backend.state, _given[-1], 1, 0).compile().as_text()
    return {"shapes": shapes, "adds_across": "all-reduce" in program}


_divide = Devices.divide
_given: list[dict[str, Any]] = []


def watched(self: Devices, *arguments: Any) -> Any:
    _given.append(_divide(self, *arguments))
    return _given[-1]


if __name__ == "__main__":
    Devices.divide = watched  # type: ignore[method-assign]
    print(json.dumps({name: compare(name) for name in sys.argv[1:]}))
