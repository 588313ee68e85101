from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offbeat.run.pace import Pace


def test_no_update_is_due_before_the_warm_up() -> None:
    pace = Pace(updates_per_step=1.0, warmup_steps=100)
    assert [pace.updates_due(steps, 0) for steps in (0, 99, 100, 101, 164)] == [0, 0, 0, 1, 64]


def test_a_fraction_that_floats_cannot_hold_is_counted_exactly() -> None:
    pace = Pace(updates_per_step=0.29, warmup_steps=1)
    assert pace.planned(101) == 29
    assert Pace(0.1, 1).planned(31) == 3


@given(st.sampled_from([0.1, 0.25, 0.3, 1.0, 2.5, 20.0]), st.integers(1, 64), st.integers(1, 500))
def test_the_ratio_is_held_whatever_the_number_of_environments(ratio: float, num_envs: int, warmup: int) -> None:
    pace, steps, updates = Pace(ratio, warmup), 0, 0
    for _ in range(200):
        steps += num_envs
        updates += pace.updates_due(steps, updates)
    assert abs(updates - max(0, steps - warmup) * ratio) < 1
