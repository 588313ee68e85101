"""Tracing the halves of an update: a traced learner makes the very updates of one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from offbeat.trace import NO_TRACE
from small_learners import make, same, updated
from small_rollouts import make as make_of_rollouts
from small_rollouts import prepared, rollout


class Notes:
    """A trace that remembers the names of its spans."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.names.append(name)
        yield


def test_a_traced_learner_learns_as_one_that_is_not_and_notes_each_half() -> None:
    plain, traced, notes = make(), make(), Notes()
    traced.trace_halves(notes)  # type: ignore[arg-type]
    assert same(updated(plain, 3), updated(traced, 3))
    assert notes.names == ["critic", "actor", "temperature"] * 3


def test_what_may_be_left_out_of_an_update_may_be_left_out_of_a_traced_one() -> None:
    learner = make_of_rollouts("appo")
    batch = prepared(learner, rollout(learner))
    learner.trace_halves(NO_TRACE)
    with torch.inference_mode():
        learner._algorithm_update(learner.state, learner.config, learner.spec, batch, 1e-3)
    assert learner.updates == 1


def _algorithm(steps: int) -> Any:
    """An algorithm whose update has defaults of both kinds, and knows a name of what is around it."""

    def update(state: Any, by: int = 2, *, times: int = 3) -> int:
        return update_critic(state, by=by) * times * steps

    return SimpleNamespace(update=update, update_critic=update_critic)


def update_critic(state: Any, by: int) -> int:
    return int(state) + by


def test_an_update_with_defaults_and_names_from_around_it_can_be_traced() -> None:
    learner, notes = make(), Notes()
    learner.algorithm = _algorithm(steps=5)
    learner.trace_halves(notes)  # type: ignore[arg-type]
    assert learner._algorithm_update(1) == (1 + 2) * 3 * 5
    assert learner._algorithm_update(1, 4, times=2) == (1 + 4) * 2 * 5
    assert notes.names == ["critic", "critic"]


def test_tracing_one_learner_leaves_others_alone() -> None:
    traced, notes = make(), Notes()
    traced.trace_halves(notes)  # type: ignore[arg-type]
    updated(make())
    assert notes.names == []
