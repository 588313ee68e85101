"""The pace: how many updates are due after so many steps, and how far collectors may run ahead, in each mode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.run.pace import ENDLESS, PaceMode, RatioPace

ratios = st.sampled_from([0.1, 0.25, 0.3, 1.0, 2.5, 20.0])


def test_no_update_is_due_before_the_warm_up() -> None:
    pace = RatioPace(updates_per_step=1.0, warmup_steps=100)
    assert [pace.due(steps, 0) for steps in (0, 99, 100, 101, 164)] == [0, 0, 0, 1, 64]


def test_a_fraction_that_floats_cannot_hold_is_counted_exactly() -> None:
    pace = RatioPace(updates_per_step=0.29, warmup_steps=1)
    assert pace.planned(101) == 29
    assert RatioPace(0.1, 1).planned(31) == 3


@given(ratios, st.integers(1, 64), st.integers(1, 500))
def test_the_ratio_is_held_whatever_the_number_of_environments(ratio: float, num_envs: int, warmup: int) -> None:
    pace, steps, updates = RatioPace(ratio, warmup), 0, 0
    for _ in range(200):
        steps += num_envs
        updates += pace.due(steps, updates)
    assert abs(updates - max(0, steps - warmup) * ratio) < 1


@given(ratios, st.integers(0, 300), st.integers(0, 2_000), st.integers(0, 100))
def test_held_collectors_are_never_more_than_slack_ahead_of_the_updates(
    ratio: float, warmup: int, updates: int, slack: int
) -> None:
    pace = RatioPace(ratio, warmup, slack=slack)
    ahead = pace.ahead(updates)
    assert pace.planned(ahead - slack) <= updates < pace.planned(ahead - slack + 1)
    assert pace.covered(updates) == ahead - slack


@given(ratios, st.integers(0, 300), st.integers(0, 5_000), st.integers(0, 5_000))
def test_a_ceiling_holds_the_learner_at_the_ratio_and_never_the_collectors(
    ratio: float, warmup: int, steps: int, updates: int
) -> None:
    ceiling, held = RatioPace(ratio, warmup, "ceiling"), RatioPace(ratio, warmup)
    assert ceiling.due(steps, updates) == held.due(steps, updates)
    assert ceiling.ahead(updates) == ENDLESS
    assert ceiling.planned(steps) == held.planned(steps)


def test_a_free_learner_waits_for_the_warm_up_alone_and_stops_with_the_last_step() -> None:
    pace = RatioPace(1.0, 100, "free", total_steps=1_000)
    assert [pace.due(steps, 0) > 0 for steps in (0, 99, 100, 999, 1_000, 1_001)] == [
        *(False, False, True),
        *(True, False, False),
    ]
    assert pace.due(100, 10**9) > 0  # however many updates were made
    assert pace.ahead(0) == ENDLESS


@pytest.mark.parametrize(("mode", "by_steps"), [("held", False), ("ceiling", True), ("free", True)])
def test_schedules_follow_the_steps_where_the_number_of_updates_is_not_known(mode: PaceMode, by_steps: bool) -> None:
    pace = RatioPace(0.5, 100, mode)
    assert pace.by_steps == by_steps
    assert pace.planned(300) == 100
    assert pace.end(300) == 300


@pytest.mark.parametrize("mode", ["held", "ceiling", "free"])
def test_updates_leave_no_acting_weights_further_behind_than_the_limit(mode: PaceMode) -> None:
    pace = RatioPace(1.0, 0, mode, max_policy_lag=8)
    assert pace.due(50, 20, 20) == 8
    assert pace.due(50, 20, 15) == 3
    assert pace.due(50, 20, 12) == pace.due(50, 20, 3) == 0
    assert pace.due(50, 20, None) == 8  # no weights act at this moment
    assert RatioPace(1.0, 0, mode).due(50, 20, 0) >= 30
    if mode != "free":
        assert pace.due(22, 20, 15) == 2


@pytest.mark.parametrize("mode", ["held", "ceiling", "free"])
def test_the_ratio_is_what_was_made_after_the_warm_up(mode: PaceMode) -> None:
    pace = RatioPace(1.0, 100, mode)
    assert pace.ratio(100, 0) is None
    assert pace.ratio(300, 50) == 0.25


# Updates in groups.


def test_updates_of_several_steps_are_due_together() -> None:
    pace = RatioPace(0.5, 10, every=8)
    assert [pace.due(steps, 0, True) for steps in (10, 17, 18, 25, 26)] == [0, 0, 4, 4, 8]
    # Until four updates are made, no step of the next group is begun.
    assert [pace.ahead(updates) for updates in (0, 3, 4, 7)] == [17, 17, 25, 25]


@given(ratios, st.integers(0, 300), st.integers(1, 50), st.integers(0, 2_000))
def test_groups_of_steps_are_covered_by_the_updates_before_them(
    ratio: float, warmup: int, every: int, updates: int
) -> None:
    pace = RatioPace(ratio, warmup, every=every)
    assert pace.planned(pace.covered(updates)) <= updates < pace.planned(pace.covered(updates) + 1)
    assert (pace.covered(updates) + 1 - warmup) % every == 0


@pytest.mark.parametrize(("updates", "steps"), [(8, 12_288), (1, 3), (7, 4_097), (5, 65_536 * 3)])
def test_a_ratio_that_is_a_quotient_gives_whole_updates_after_its_steps(updates: int, steps: int) -> None:
    pace = RatioPace(updates / steps, 0, every=steps)
    assert [pace.planned(groups * steps) for groups in (1, 2, 1_000)] == [updates, 2 * updates, 1_000 * updates]


def test_a_ratio_below_every_usual_fraction_is_still_one() -> None:
    pace = RatioPace(1e-11, 0)
    assert pace.planned(10**11) == 1
    assert pace.covered(0) == 10**11 - 1
