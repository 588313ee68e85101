"""Fields of settings: a default, a help text, and the range that a value must be in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from offbeat.errors import UsageError


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    needs: str | None = None,
) -> Any:
    """A dataclass field with its help text and its range; ranges hold for every entry of a tuple, and not for None.

    needs: another setting without which this one has nothing to act on.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    held = {name: limit for name, limit in limits.items() if limit is not None}
    metadata = {"help": help, "limits": held, "needs": needs}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_HOLDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (lambda value, limit: value >= limit, "at least"),
    "above": (lambda value, limit: value > limit, "more than"),
    "at_most": (lambda value, limit: value <= limit, "at most"),
    "below": (lambda value, limit: value < limit, "less than"),
}


def check_range(name: str, value: Any, limits: Mapping[str, float]) -> None:
    """Raises UsageError where a number, or a number in a tuple, is not finite or is outside `limits`."""
    for entry in value if isinstance(value, tuple) else (value,):
        if not isinstance(entry, int | float) or isinstance(entry, bool):
            continue
        if isinstance(entry, float) and not math.isfinite(entry):
            raise UsageError(f"{name}={value!r} is out of range: it must be finite")
        for limit_name, limit in limits.items():
            holds, words = _HOLDS[limit_name]
            if not holds(entry, limit):
                raise UsageError(f"{name}={value!r} is out of range: it must be {words} {limit}")


def check_ranges(config: Any) -> None:
    """Raises UsageError for the first field whose value is outside the range that `setting` gave it."""
    for each in dataclasses.fields(config):
        check_range(each.name, getattr(config, each.name), each.metadata["limits"])


def range_words(limits: Mapping[str, float]) -> str:
    """The range in words, such as "at least 0, at most 1"; empty where every value is allowed."""
    return ", ".join(f"{_HOLDS[name][1]} {limit}" for name, limit in limits.items())
