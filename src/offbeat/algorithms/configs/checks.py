"""Checks of a whole config of an algorithm, whichever groups it is composed of."""

from __future__ import annotations

import difflib
from typing import Any

from offbeat import flat
from offbeat.algorithms.configs.exploration import check_exploration
from offbeat.algorithms.configs.groups import SCHEDULES, own_schedule, schedules_of
from offbeat.algorithms.configs.idle import refuse_idle
from offbeat.errors import UsageError
from offbeat.ranges import check_ranges


def check_config(config: Any) -> None:
    """Raises UsageError for a value out of range, an unknown schedule, or a setting without effect."""
    check_ranges(config)
    for name, schedule in schedules_of(flat.values(config)).items():
        _check_schedule(name, schedule)
    check_exploration(getattr(config, "exploration", None))
    refuse_idle(config)


def _check_schedule(name: str, schedule: Any) -> None:
    if isinstance(schedule, str) and schedule not in SCHEDULES and not own_schedule(schedule):
        close = difflib.get_close_matches(schedule, SCHEDULES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"{name}={schedule!r} is none of {', '.join(SCHEDULES)}, nor a module:callable{hint}")
