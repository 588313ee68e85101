"""Tracing the halves of an update: a traced learner makes the very updates of one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from offbeat.learn.torch_trace import traced
from offbeat.trace import NO_TRACE
from small_learners import make, same, updated
from small_rollouts import make as make_of_rollouts
from small_rollouts import prepared, rollout, turn


class Notes:
    """A trace that remembers the names of its spans."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.names.append(name)
        yield


def test_a_traced_learner_learns_as_one_that_is_not_and_notes_each_half() -> None:
    plain, other, notes = make(), make(), Notes()
    other.backend.trace_parts(notes)  # type: ignore[arg-type]
    assert same(updated(plain, 3), updated(other, 3))
    assert notes.names == ["critic", "actor", "temperature"] * 3


def test_what_may_be_left_out_of_an_update_may_be_left_out_of_a_traced_one() -> None:
    learner = make_of_rollouts("appo")
    batch = prepared(learner, rollout(learner))
    learner.backend.trace_parts(NO_TRACE)
    with torch.inference_mode():
        found = learner.backend.function("learn_minibatch")(
            learner.state, learner.config, learner.spec, batch, 1e-3, updates=0
        )
    assert found[1:] == (1e-3, False)


def test_a_traced_turn_learns_as_one_that_is_not_and_notes_each_half_of_each_minibatch() -> None:
    plain, other, notes = make_of_rollouts(), make_of_rollouts(), Notes()
    other.backend.trace_parts(notes)  # type: ignore[arg-type]
    for learner in (plain, other):
        assert turn(learner, rollout(learner)) == 8
    assert all(np.array_equal(array, other.arrays()[name]) for name, array in plain.arrays().items())
    assert notes.names == ["actor", "critic"] * 8


def _algorithm(steps: int) -> Any:
    """An algorithm whose update has defaults of both kinds, and knows a name of what is around it."""

    def update(state: Any, by: int = 2, *, times: int = 3) -> int:
        return update_critic(state, by=by) * times * steps

    return SimpleNamespace(update=update, update_critic=update_critic)


def update_critic(state: Any, by: int) -> int:
    return int(state) + by


def test_an_update_with_defaults_and_names_from_around_it_can_be_traced() -> None:
    notes = Notes()
    update = traced(_algorithm(steps=5), notes)["update"]
    assert update(1) == (1 + 2) * 3 * 5
    assert update(1, 4, times=2) == (1 + 4) * 2 * 5
    assert notes.names == ["critic", "critic"]


def test_tracing_one_learner_leaves_others_alone() -> None:
    other, notes = make(), Notes()
    other.backend.trace_parts(notes)  # type: ignore[arg-type]
    updated(make())
    assert notes.names == []
