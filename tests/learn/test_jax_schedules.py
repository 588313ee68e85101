"""Schedules on JAX: built-in ones, a user's own, and those of optax."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest
from torch.optim.lr_scheduler import StepLR

import offbeat
from driven_learner import Learner, stack
from offbeat.errors import UsageError
from offbeat.learn import jax_schedules
from own_parts.schedules import InverseRoot, warm_up_and_fall
from small_learners import SPEC, batches, make, same, updated

PLANNED = 8


def on_jax(**settings: Any) -> Learner:
    return make(planned=PLANNED, backend="jax", **settings)


def factors(learner: Learner, count: int = PLANNED) -> list[float]:
    return [learner.rates(ahead)["actor"] / 1e-3 for ahead in range(count)]


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        ("cosine_decay_schedule", {"decay_steps": 6, "alpha": 0.1}),
        ("exponential_decay", {"transition_steps": 2, "decay_rate": 0.5}),
        ("piecewise_constant_schedule", {"boundaries_and_scales": {3: 0.1}}),
        ("warmup_cosine_decay_schedule", {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 3, "decay_steps": 8}),
    ],
)
def test_a_factory_of_optax_gives_a_factor_by_the_number_of_updates(factory: str, options: dict[str, Any]) -> None:
    own = getattr(optax, factory)
    schedule = own(**({"init_value": 1.0} | options))
    wanted = [float(schedule(update)) for update in range(PLANNED)]
    assert len(set(wanted)) > 1
    for given in (own, f"optax:{factory}"):
        learner = on_jax(actor_schedule=given, schedule_kwargs=options)
        assert factors(learner) == pytest.approx(wanted, rel=1e-6)
    assert factors(on_jax(actor_schedule=schedule)) == pytest.approx(wanted, rel=1e-6), "one that is made already"


def test_a_schedule_goes_on_over_blocks_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_schedules, "BLOCK", 3)
    learner = on_jax(actor_schedule=optax.linear_schedule, schedule_kwargs={"end_value": 0.0, "transition_steps": 8})
    wanted = [1.0 - update / 8 for update in range(PLANNED)]
    assert factors(learner) == pytest.approx(wanted)
    assert factors(learner) == pytest.approx(wanted), "from the first again"


def test_updates_follow_the_schedule_and_resume() -> None:
    settings = {"actor_schedule": "optax:cosine_decay_schedule", "schedule_kwargs": {"decay_steps": 6}}
    at_once, one_by_one, resumed, constant = on_jax(**settings), on_jax(**settings), on_jax(**settings), on_jax()
    given = batches(4)
    at_once.update(stack([batch for batch, _ in given]), np.stack([noise for _, noise in given]))
    resumed.restore(updated(one_by_one, 2).arrays())
    for learner in (one_by_one, resumed):
        for batch, noise in given[2:]:
            learner.update_once(batch, noise)
    assert same(at_once, one_by_one)
    assert same(resumed, one_by_one)
    assert not same(updated(constant, 4), one_by_one)


def test_built_in_schedules_and_functions_of_the_progress_are_those_of_torch() -> None:
    for schedule in ("linear", "cosine", warm_up_and_fall):
        assert factors(on_jax(actor_schedule=schedule)) == factors(make(planned=PLANNED, actor_schedule=schedule))


@pytest.mark.parametrize(
    ("backend", "schedule", "options", "words"),
    [
        ("jax", StepLR, {"step_size": 3}, "StepLR is a class, and backend=jax has no scheduler classes: use a funct"),
        ("jax", InverseRoot, {}, "InverseRoot is a class, and backend=jax has no scheduler classes"),
        ("jax", optax.cosine_decay_schedule, {"steps": 3}, r"cosine_decay_schedule\(init_value=1.0, steps=3\) raised"),
        ("jax", optax.linear_schedule(1.0, 0.0, 5), {"end": 3}, "because this schedule of optax is made already"),
        ("jax", optax.constant_schedule, {"value": -1.0}, "your schedule returned -1.0 at progress 0; return a factor"),
        (
            "torch",
            optax.cosine_decay_schedule,
            {"decay_steps": 3},
            "is a schedule of optax, which backend=torch cannot",
        ),
        ("torch", "optax:constant_schedule", {"value": 1.0}, "is a schedule of optax, which backend=torch cannot use"),
    ],
)
def test_a_schedule_of_the_other_backend_or_with_wrong_options_is_refused(
    backend: str, schedule: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        offbeat.Agent(
            "sac", SPEC, backend=backend, actor_schedule=schedule, schedule_kwargs=options, total_updates=PLANNED
        )
