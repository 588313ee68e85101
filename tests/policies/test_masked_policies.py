"""Policies with masks never choose a forbidden action, in any backend, and log-probabilities respect the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from offbeat.masks import permits
from offbeat.policies import make_policy
from offbeat.types import Array
from specs import choice_spec

ROWS, CHOICES = 300, 5
KINDS: dict[str, dict[str, Any]] = {
    "categorical": {"kind": "categorical", "log_prob": True},
    "multi_categorical": {"kind": "multi_categorical", "branches": [2, 3], "log_prob": True},
    "greedy": {"kind": "greedy", "dueling": False},
    "dueling": {"kind": "greedy", "dueling": True},
    "epsilon": {
        "kind": "greedy",
        "dueling": False,
        "exploration": {"kind": "epsilon_greedy", "initial": 0.5, "final": 0.5, "steps": 1, "decay": "linear"},
    },
}


NO_HEADS = "dueling", "module"
"""A user's module returns one value per action."""


def outputs(kind: str) -> int:
    return CHOICES + (kind == "dueling")


def weights(kind: str) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    weight = rng.normal(0.0, 1.0, (4, outputs(kind))).astype(np.float32)
    return {"actor/0/weight": weight, "actor/0/bias": np.zeros(outputs(kind), np.float32)}


def policy(kind: str, backend: str) -> Any:
    description = {**KINDS[kind], "activation": "relu"}
    if backend != "module":
        made = make_policy(description, acting=backend, num_envs=ROWS, spec=choice_spec(4, CHOICES))
        made.load(weights(kind))
        return made
    description |= {"head": description["kind"], "kind": "module"}
    actor = lambda spec: nn.Linear(4, outputs(kind))  # noqa: E731
    made = make_policy(description, num_envs=ROWS, spec=choice_spec(4, CHOICES), actor=actor)
    own = weights(kind)
    made.load({"actor/weight": own["actor/0/weight"].T.copy(), "actor/bias": own["actor/0/bias"]})
    return made


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    ("kind", "backend"),
    [(kind, backend) for kind in KINDS for backend in ("numpy", "torch", "module") if (kind, backend) != NO_HEADS],
)
def test_only_allowed_actions_are_chosen(kind: str, backend: str, seed: int | None) -> None:
    branches = tuple(KINDS[kind].get("branches", (CHOICES,)))
    rng = np.random.default_rng(1)
    obs, mask = rng.standard_normal((ROWS, 4)).astype(np.float32), rng.random((ROWS, CHOICES)) < 0.3
    mask[:, 0] |= ~mask[:, : branches[0]].any(1)
    mask[:, -1] |= ~mask[:, -branches[-1] :].any(1)
    made = policy(kind, backend)
    draws = None if seed is None else np.random.default_rng(seed)
    action, _, extras = made.act(obs, made.initial_carry(ROWS), draws, 0, mask)
    assert permits(mask, action, branches)
    logits = (obs @ weights(kind)["actor/0/weight"])[:, -CHOICES:]
    logits = np.where(mask, logits, -np.inf)
    parts = np.split(logits, np.cumsum(branches)[:-1], 1)
    if seed is None:
        np.testing.assert_array_equal(action, np.stack([part.argmax(1) for part in parts], 1))
    elif "log_prob" in KINDS[kind]:
        own = [torch.from_numpy(part).log_softmax(1).numpy() for part in parts]
        wanted = sum(each[np.arange(ROWS), index.astype(int)] for each, index in zip(own, action.T, strict=True))
        np.testing.assert_allclose(extras["log_prob"], wanted, rtol=1e-4, atol=1e-5)
