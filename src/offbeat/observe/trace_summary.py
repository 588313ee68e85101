"""Summarises the trace of a run (see `offbeat.trace`): time by process and span."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rich.box
import rich.console
from rich.table import Table

REQUIRED = ("name", "ph", "pid", "tid")
NANOSECONDS = 1e-9

_Span = tuple[int, int, str]
"""Start and stop in nanoseconds, and the name."""


@dataclass(frozen=True)
class SpanTime:
    """All spans of one name on a track. Times in seconds.

    total: without nested spans. share: total / wall-clock time of the process.
    mean, longest: from start to stop, with nested spans.
    """

    name: str
    count: int
    total: float
    share: float
    mean: float
    longest: float


@dataclass(frozen=True)
class TrackTime:
    """One track, summed over all processes of one name. Times in seconds.

    track: "" for the thread that opened the trace, else the track's name, such as "cuda".
    wall: from each process's first event to the end of its last event.
    spans: sorted by total, largest first.
    unattributed: the part of `wall` outside of all spans; None on other tracks, which may be idle.
    """

    process: str
    track: str
    wall: float
    spans: tuple[SpanTime, ...]
    unattributed: float | None


@dataclass
class _Process:
    """One process in the trace. Times in nanoseconds.

    main: the track of its first event. order: its sort index. tracks: names by track. spans: by track.
    """

    name: str
    main: int
    order: int = 0
    start: float = math.inf
    stop: float = -math.inf
    tracks: dict[int, str] = field(default_factory=dict)
    spans: dict[int, list[_Span]] = field(default_factory=lambda: defaultdict(list))

    def cover(self, start: int, stop: int) -> None:
        self.start, self.stop = min(self.start, start), max(self.stop, stop)

    def track_name(self, track: int) -> str:
        return "" if track == self.main else self.tracks.get(track, f"track {track}")


@dataclass
class _Sum:
    """Running sums of one span name: count and nanoseconds. whole: with nested spans."""

    count: int = 0
    total: int = 0
    whole: int = 0
    longest: int = 0

    def time(self, name: str, wall: float) -> SpanTime:
        share = self.total / wall if wall else 0.0
        total, mean, longest = (
            NANOSECONDS * value for value in (self.total, self.whole / max(self.count, 1), self.longest)
        )
        return SpanTime(name, self.count, total, share, mean, longest)


def read(path: Path | str) -> Iterator[dict[str, Any]]:
    """The events of a trace, complete or not; incomplete lines after a crash are left out."""
    with open(path, "rb") as file:
        for line in file:
            try:
                event = json.loads(line.strip().removesuffix(b","))
            except ValueError:  # a bracket of the array, or an incomplete line
                continue
            if isinstance(event, dict) and event.keys() >= set(REQUIRED):
                yield event


def summarise(path: Path | str) -> list[TrackTime]:
    """The times of all tracks of a trace, sorted by process, each with its main track first."""
    wall: dict[str, float] = defaultdict(float)
    covered: dict[str, int] = defaultdict(int)
    sums: dict[tuple[str, str], dict[str, _Sum]] = {}
    for process in sorted(_processes(path), key=lambda each: (each.order, each.name)):
        wall[process.name] += process.stop - process.start
        sums.setdefault((process.name, ""), defaultdict(_Sum))
        for track, spans in process.spans.items():
            name = process.track_name(track)
            inside = _add_up(spans, sums.setdefault((process.name, name), defaultdict(_Sum)))
            covered[process.name] += inside if name == "" else 0
    return [
        TrackTime(
            name,
            track,
            wall[name] * NANOSECONDS,
            tuple(
                each.time(span, wall[name]) for span, each in sorted(by_name.items(), key=lambda entry: -entry[1].total)
            ),
            (wall[name] - covered[name]) * NANOSECONDS if track == "" else None,
        )
        for (name, track), by_name in sums.items()
    ]


def table(tracks: list[TrackTime]) -> Table:
    """A table with a block of rows for each track."""
    shown = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("process", "span"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("count", "self", "share", "mean", "longest"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for track in tracks:
        title = " ".join(filter(None, (track.process, track.track)))
        shown.add_row(title, "wall-clock", "", _duration(track.wall), "", "", "", style="bold")
        for span in track.spans:
            times = (_duration(span.total), f"{span.share:.1%}", _duration(span.mean), _duration(span.longest))
            shown.add_row("", span.name, f"{span.count:,}", *times)
        if track.unattributed is not None:
            share = track.unattributed / track.wall if track.wall else 0.0
            shown.add_row("", "unattributed", "", _duration(track.unattributed), f"{share:.1%}", "", "", style="dim")
        shown.add_section()
    return shown


def text(path: Path | str) -> str:
    """The table of a trace as text, with colours if standard output supports them."""
    console = rich.console.Console(highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table(summarise(path)))
    return captured.get().rstrip("\n")


def _processes(path: Path | str) -> list[_Process]:
    """The processes in a trace. Each process_name event starts a new one, because ids may repeat after a resume."""
    found: list[_Process] = []
    alive: dict[int, _Process] = {}
    for event in read(path):
        name, phase, pid, track = (event[key] for key in REQUIRED)
        named = phase == "M" and name == "process_name"
        counts = named or phase in ("X", "C")
        if named or (counts and pid not in alive):
            alive[pid] = _Process(event["args"]["name"] if named else f"process {pid}", track)
            found.append(alive[pid])
        process = alive.get(pid)
        if process is None:
            continue
        if counts:
            process.cover(*_interval(event))
        if phase == "X":
            process.spans[track].append((*_interval(event), name))
        elif phase == "M" and name == "thread_name":
            process.tracks[track] = event["args"]["name"]
        elif phase == "M" and name == "process_sort_index":
            process.order = event["args"]["sort_index"]
    return found


def _interval(event: Mapping[str, Any]) -> tuple[int, int]:
    """Start and stop in nanoseconds; Offbeat writes whole nanoseconds."""
    start = round(event.get("ts", 0) * 1000)
    return start, start + round(event.get("dur", 0) * 1000)


def _add_up(spans: list[_Span], sums: dict[str, _Sum]) -> int:
    """Adds a track's spans to the sums by name; returns the time that they cover together."""
    covered = 0
    for start, stop, name, around in _with_parent(spans):
        one, duration = sums[name], stop - start
        one.count += 1
        one.total += duration
        one.whole += duration
        one.longest = max(one.longest, duration)
        if around is None:
            covered += duration
        else:
            sums[around[2]].total -= min(stop, around[1]) - start
    return covered


def _with_parent(spans: list[_Span]) -> Iterator[tuple[int, int, str, _Span | None]]:
    """Each span of a track, sorted by start, outer before inner, and the span around it or None."""
    around: list[_Span] = []
    for span in sorted(spans, key=lambda each: (each[0], -each[1])):
        while around and around[-1][1] <= span[0]:
            around.pop()
        yield *span, around[-1] if around else None
        around.append(span)


def _duration(seconds: float) -> str:
    """Three significant digits and a unit: 12.3 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:,.{max(0, 2 - int(math.log10(seconds / scale)))}f} {unit}"
    return f"{seconds / 1e-6:.1f} µs"
