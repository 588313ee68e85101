"""Schedules of learning rates and of other settings: built-in ones, a user's own, and torch's scheduler classes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ExponentialLR, StepLR

from driven_learner import Learner, stack
from offbeat.algorithms.torch import appo
from offbeat.errors import UsageError
from small_learners import batches, make, same, updated
from small_rollouts import make as make_of_rollouts
from small_rollouts import rollout, turn

PLANNED = 8


def falling(progress: float, floor: float, power: int = 1) -> float:
    """A schedule as a user would write it."""
    return max(floor, (1.0 - progress) ** power)


SCHEDULED: dict[str, dict[str, Any]] = {
    "built-in": {"actor_schedule": "cosine", "critic_schedule": "linear"},
    "own": {"actor_schedule": falling, "schedule_kwargs": {"floor": 0.3, "power": 2}},
    "class": {"critic_schedule": StepLR, "schedule_kwargs": {"step_size": 2, "gamma": 0.1}},
    "class by name": {
        "critic_schedule": "torch.optim.lr_scheduler:ExponentialLR",
        "temperature_schedule": "torch.optim.lr_scheduler:ExponentialLR",
        "schedule_kwargs": {"gamma": 0.5},
    },
}
scheduled = pytest.mark.parametrize("name", SCHEDULED)


def scheduled_learner(name: str) -> Learner:
    return make(planned=PLANNED, **SCHEDULED[name])


def rates(learner: Learner, group: str) -> list[float]:
    """The rate of each of the planned updates, relative to the configured one of 1e-3."""
    return [learner.rates(ahead)[group] / 1e-3 for ahead in range(PLANNED)]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", {0.0: 1.0, 0.25: 1.0, 1.0: 1.0}),
        ("linear", {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        ("cosine", {0.0: 1.0, 0.25: 0.5 * (1 + math.sqrt(0.5)), 0.5: 0.5, 1.0: 0.0}),
    ],
)
def test_a_built_in_schedule_is_a_factor_of_the_progress(schedule: str, factors: dict[float, float]) -> None:
    learner = make(planned=PLANNED, actor_schedule=schedule)
    for progress, factor in factors.items():
        assert learner.rates(ahead=int(progress * PLANNED))["actor"] == pytest.approx(1e-3 * factor, abs=1e-12)
    assert rates(learner, "critic") == [1.0] * PLANNED, "each group has a schedule of its own"


def test_progress_overrides_the_share_of_planned_updates_and_ends_at_1() -> None:
    learner = make(planned=PLANNED, actor_schedule="linear")
    for progress, factor in ((0.0, 1.0), (0.75, 0.25), (1.0, 0.0), (1.5, 0.0)):
        learner.progress = progress
        assert rates(learner, "actor") == pytest.approx([factor] * PLANNED)
    learner.progress, learner.updates = None, 2 * PLANNED
    assert learner.rates()["actor"] == 0.0


def test_an_own_schedule_gets_the_progress_and_its_keyword_arguments() -> None:
    learner = make(planned=PLANNED, actor_schedule=falling, schedule_kwargs={"floor": 0.3, "power": 2})
    wanted = [max(0.3, (1 - update / PLANNED) ** 2) for update in range(PLANNED)]
    assert rates(learner, "actor") == pytest.approx(wanted)


def test_an_own_schedule_may_be_given_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_schedules.py").write_text("def halved(progress, by):\n    return 1.0 if progress < 0.5 else by\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    learner = make(planned=PLANNED, actor_schedule="own_schedules:halved", schedule_kwargs={"by": 0.25})
    assert rates(learner, "actor") == pytest.approx([1.0] * 4 + [0.25] * 4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (StepLR, {"step_size": 3, "gamma": 0.1}),
        (ExponentialLR, {"gamma": 0.9}),
        (CosineAnnealingWarmRestarts, {"T_0": 3, "eta_min": 0.1}),
    ],
)
def test_a_scheduler_class_gives_the_rates_that_it_gives_an_optimiser_of_torch(
    kind: type, options: dict[str, Any]
) -> None:
    learner = make(planned=PLANNED, critic_schedule=kind, schedule_kwargs=options)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, wanted = kind(optimiser, **options), []
    for _ in range(PLANNED):
        wanted.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    assert rates(learner, "critic") == pytest.approx(wanted)
    assert len(set(wanted)) > 1
    updated(learner, 2)
    assert [learner.rates(ahead)["critic"] / 1e-3 for ahead in range(4)] == pytest.approx(wanted[2:6])


def test_the_options_of_a_scheduler_class_are_those_of_its_own_signature() -> None:
    with pytest.raises(UsageError, match=r"StepLR\(step=3\) raised TypeError with these options"):
        make(planned=PLANNED, actor_schedule=StepLR, schedule_kwargs={"step": 3})


def test_an_own_schedule_without_its_keyword_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match=r"actor_schedule: your schedule raised TypeError: .*floor"):
        make(planned=PLANNED, actor_schedule=falling)


@scheduled
def test_k_batches_in_one_call_follow_the_schedule_as_k_calls_do(name: str) -> None:
    at_once, one_by_one, constant = scheduled_learner(name), scheduled_learner(name), make(planned=PLANNED)
    given = batches(PLANNED)
    at_once.update(stack([batch for batch, _ in given]), np.stack([noise for _, noise in given]))
    updated(one_by_one, PLANNED)
    updated(constant, PLANNED)
    assert at_once.updates == one_by_one.updates == PLANNED
    assert same(at_once, one_by_one)
    assert at_once.drain() == one_by_one.drain()
    assert not same(at_once, constant)


@scheduled
def test_a_restored_learner_follows_the_schedule_from_where_it_was(name: str) -> None:
    straight, first, resumed = (scheduled_learner(name) for _ in range(3))
    updated(straight, PLANNED)
    saved = updated(first, 3).arrays()
    updated(resumed, 5)  # further than where it is set back to
    resumed.restore(saved)
    assert resumed.rates() == first.rates()
    for batch, noise in batches(PLANNED)[3:]:
        resumed.update_once(batch, noise)
    assert same(straight, resumed)


def test_the_progress_of_a_run_is_saved_so_that_rates_are_right_before_the_next_rollout() -> None:
    first, resumed, unplanned = (make_of_rollouts(schedule="linear") for _ in range(3))
    first.progress, resumed.progress = 0.5, 0.0
    resumed.restore(first.arrays())
    assert resumed.rates() == first.rates()
    unplanned.restore(first.arrays())
    assert unplanned.progress is None, "a learner whose progress is its number of updates keeps to them"


def _settings_used(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each update with a rollout."""
    used, update = [], appo.learn_minibatch

    def watched(state: Any, config: Any, *others: Any) -> Any:
        used.append(config)
        return update(state, config, *others)

    with monkeypatch.context() as patched:
        patched.setattr(appo, "learn_minibatch", watched)
        turn(learner, rollout(learner))
    return used


def test_keyword_arguments_reach_the_schedules_of_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_of_rollouts(clip=0.2, clip_schedule=falling, schedule_kwargs={"floor": 0.0})
    for progress, clip in ((0.25, 0.15), (1.0, 0.0)):
        learner.progress = progress
        assert [each.objective.clip for each in _settings_used(learner, monkeypatch)] == pytest.approx([clip] * 8)
    assert learner.config.objective.clip == 0.2


def test_a_scheduler_class_steps_other_settings_by_the_updates_made(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = {"entropy_schedule": StepLR, "schedule_kwargs": {"step_size": 8, "gamma": 0.1}}
    learner = make_of_rollouts(entropy_coefficient=0.5, **schedule)
    for coefficient in (0.5, 0.05, 0.005):
        used = _settings_used(learner, monkeypatch)
        assert [each.objective.entropy_coefficient for each in used] == pytest.approx([coefficient] * 8)


@scheduled
def test_a_schedule_needs_the_length_of_the_run(name: str) -> None:
    scheduled_learner(name).check_schedules()
    make().check_schedules()
    with pytest.raises(UsageError, match=r"_schedule=.* needs the length of the run: set total_steps or total_updates"):
        make(**SCHEDULED[name]).check_schedules()
