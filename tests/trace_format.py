"""Checks a trace against the Trace Event Format, as its viewers read it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offbeat.observe.trace_summary import _interval, _Span, _with_parent

PHASES = frozenset("BEXiICbneSTpFsftPNODMVvRc(),=")
"""Every kind of event (`ph`) in the Trace Event Format."""
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}
"""The required argument of each kind of metadata, and its type."""


def validate(path: Path | str) -> list[str]:
    """The violations of the Trace Event Format in a trace; [] for a valid file.

    The closing bracket may be missing; the file then ends with a comma or, after a crash, an incomplete line.
    """
    content = Path(path).read_text().rstrip(" ")
    if not content.endswith(("]", "]\n")):
        content = content[: content.rfind("\n")].rstrip(",") + "]"
    try:
        events = json.loads(content)
    except ValueError as error:
        return [f"not a JSON array, even with a closing bracket added: {error}"]
    if not isinstance(events, list):
        return ["not a JSON array"]
    problems = [f"event {number}: {problem}" for number, event in enumerate(events) for problem in _problems(event)]
    return problems or [f"track {track}: {problem}" for track, problem in _overlaps(events)]


def _problems(event: Any) -> Iterator[str]:
    if not isinstance(event, dict):
        yield "not an object"
        return
    phase, arguments = event.get("ph"), event.get("args", {})
    if not isinstance(event.get("name"), str):
        yield "no name"
    if phase not in PHASES:
        yield f"ph={phase!r} is not a known kind of event"
    for key in ("pid", "tid"):
        if type(event.get(key)) is not int:
            yield f"{key}={event.get(key)!r} is not an integer"
    for key in ("ts", *(("dur",) if phase == "X" else ())):
        if not _is_number(event.get(key)) or event[key] < 0:
            yield f"{key}={event.get(key)!r} is not a number of at least 0"
    if not isinstance(arguments, dict):
        yield "args is not an object"
    elif phase == "M" and event.get("name") in METADATA:
        key, kind = METADATA[event["name"]]
        if not isinstance(arguments.get(key), kind):
            yield f"{event['name']} without args.{key}"
    elif phase == "C" and not all(map(_is_number, arguments.values())):
        yield f"args={arguments!r} of a counter are not all numbers"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _overlaps(events: list[dict[str, Any]]) -> Iterator[tuple[tuple[int, int], str]]:
    """Spans that start inside another span and end after it; viewers drop them."""
    tracks: dict[tuple[int, int], list[_Span]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((*_interval(event), event["name"]))
    for track, spans in tracks.items():
        for start, stop, name, around in _with_parent(spans):
            if around is not None and stop > around[1]:
                yield track, f"{name!r} from {start} to {stop} ns ends after {around[2]!r}, in which it starts"
