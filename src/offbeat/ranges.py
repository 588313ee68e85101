"""Fields of settings: a default, a help text, and the range of allowed values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
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
    title: str | None = None,
) -> Any:
    """A dataclass field with a help text and a range.

    The range applies to each entry of a tuple, and not to None. needs: a setting of the same config, or of the run,
    that must be on, because this one has no effect without it. title: the section of `--help`, where it is not that of
    the group.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    set_limits = {name: limit for name, limit in limits.items() if limit is not None}
    metadata = {"help": help, "limits": set_limits, "needs": needs, "title": title}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def group(kind: type, **defaults: Any) -> Any:
    """A dataclass field that holds a group of settings. Their keys have no prefix. defaults: where they differ."""
    names = [each.name for each in dataclasses.fields(kind)]
    if unknown := [name for name in defaults if name not in names]:
        raise UsageError(f"group({kind.__name__}, {unknown[0]}=...): the group has only {', '.join(names)}; use one")
    return dataclasses.field(default_factory=partial(kind, **defaults), metadata={"group": kind})


_RULES: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (lambda value, limit: value >= limit, "at least"),
    "above": (lambda value, limit: value > limit, "more than"),
    "at_most": (lambda value, limit: value <= limit, "at most"),
    "below": (lambda value, limit: value < limit, "less than"),
}


def check_range(name: str, value: Any, limits: Mapping[str, float]) -> None:
    """Raises UsageError if a number, or a number in a tuple, is not finite or is outside `limits`."""
    for entry in value if isinstance(value, tuple) else (value,):
        if not isinstance(entry, int | float) or isinstance(entry, bool):
            continue
        if isinstance(entry, float) and not math.isfinite(entry):
            raise UsageError(f"{name}={value!r} is out of range: it must be finite")
        for limit_name, limit in limits.items():
            holds, words = _RULES[limit_name]
            if not holds(entry, limit):
                raise UsageError(f"{name}={value!r} is out of range: it must be {words} {limit}")


def check_ranges(config: Any) -> None:
    """Raises UsageError for the first field of a dataclass, or of its groups, whose value is out of range."""
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        if "group" in each.metadata:
            check_ranges(value)
        else:
            check_range(each.name, value, each.metadata["limits"])


def range_words(limits: Mapping[str, float]) -> str:
    """The range in words, such as "at least 0, at most 1"; empty if every value is allowed."""
    return ", ".join(f"{_RULES[name][1]} {limit}" for name, limit in limits.items())
