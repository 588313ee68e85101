"""Where the time of a run went, by process and span, from the trace that `offbeat.trace` wrote."""

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

PHASES = frozenset("BEXiICbneSTpFsftPNODMVvRc(),=")
"""Every kind of event (`ph`) in the Trace Event Format."""
REQUIRED = ("name", "ph", "pid", "tid")
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}
"""The argument that each kind of metadata must have, and its type."""
NANOSECONDS = 1e-9

_Span = tuple[int, int, str]
"""Start and stop in nanoseconds, and the name."""


@dataclass(frozen=True)
class SpanTime:
    """All spans of one name on a track. Times in seconds.

    total: without the spans inside them; share: of the process's wall-clock time.
    mean, longest: from beginning to end, with the spans inside them.
    """

    name: str
    count: int
    total: float
    share: float
    mean: float
    longest: float


@dataclass(frozen=True)
class TrackTime:
    """One track of all processes of one name, added up. Times in seconds.

    track: "" for the thread that the process began to trace in, else the track's name, such as "cuda".
    wall: from each process's first event to the end of its last.
    spans: those with the largest total first.
    unattributed: the part of `wall` in no span; None on tracks other than the first, which may well be idle.
    """

    process: str
    track: str
    wall: float
    spans: tuple[SpanTime, ...]
    unattributed: float | None


@dataclass
class _Process:
    """What the trace says of one process. Times in nanoseconds.

    main: the track of its first event. tracks: names of tracks. spans: (start, stop, name) by track.
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
    """Counts and nanoseconds of one span name, while they are added up."""

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
    """The events of a trace, whether it was ended or not; lines that a crash tore are left out."""
    with open(path, "rb") as file:
        for line in file:
            try:
                event = json.loads(line.strip().removesuffix(b","))
            except ValueError:  # a bracket of the array, or a torn line
                continue
            if isinstance(event, dict) and event.keys() >= set(REQUIRED):
                yield event


def timetable(path: Path | str) -> list[TrackTime]:
    """The tracks of a trace in the order of their processes, the one that counts for the process first."""
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
    """The timetable for people: a block of rows for each track."""
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
    """The table of a trace as it is printed, in colours where standard output has them."""
    console = rich.console.Console(highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table(timetable(path)))
    return captured.get().rstrip("\n")


def validate(path: Path | str) -> list[str]:
    """What is wrong with a trace by the Trace Event Format; nothing for a file of ours.

    A file may lack its closing bracket, and then end with a comma or with a line that a crash tore.
    """
    content = Path(path).read_text().rstrip(" ")
    if not content.endswith(("]", "]\n")):
        content = content[: content.rfind("\n")].rstrip(",") + "]"
    try:
        events = json.loads(content)
    except ValueError as error:
        return [f"not a JSON array, even if the end is mended: {error}"]
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
        yield f"ph={phase!r} is no kind of event"
    for key in ("pid", "tid"):
        if type(event.get(key)) is not int:
            yield f"{key}={event.get(key)!r} is not an integer"
    for key in ("ts", *(("dur",) if phase == "X" else ())):
        if not _is_number(event.get(key)) or event[key] < 0:
            yield f"{key}={event.get(key)!r} is not a number from 0 on"
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
    """Spans that end after the one that they began in, which viewers drop."""
    tracks: dict[tuple[int, int], list[_Span]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((*_interval(event), event["name"]))
    for track, spans in tracks.items():
        for start, stop, name, around in _nested(spans):
            if around is not None and stop > around[1]:
                yield track, f"{name!r} from {start} to {stop} ns ends after {around[2]!r}, which it is in"


def _processes(path: Path | str) -> list[_Process]:
    """The processes in a trace; a process's name begins another one, for ids come again after a resume."""
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
    """Start and stop in whole nanoseconds, which a file of ours has."""
    start = round(event.get("ts", 0) * 1000)
    return start, start + round(event.get("dur", 0) * 1000)


def _add_up(spans: list[_Span], sums: dict[str, _Sum]) -> int:
    """Adds a track's spans to the sums by name; returns how much time they cover together."""
    covered = 0
    for start, stop, name, around in _nested(spans):
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


def _nested(spans: list[_Span]) -> Iterator[tuple[int, int, str, _Span | None]]:
    """Each span of a track by its beginning, the outer before the inner, and the one around it if there is one."""
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
