"""What each process of a run does when: spans and counters in one file that Perfetto and chrome://tracing open.

The file is the array form of the Trace Event Format, one event per line. Every process appends whole lines to it. Times
are microseconds since the file was begun: counted from 1970 they would leave a double, which viewers read them as, a
quarter of a microsecond, and neighbours would seem to overlap.
"""

from __future__ import annotations

import functools
import json
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic_ns, thread_time_ns, time_ns
from types import TracebackType
from typing import Any, Protocol

from offbeat import durable

BUFFERED_EVENTS = 2_000
BUFFERED_NANOSECONDS = 500_000_000
CUDA_TRACK = 1_000_000_000
"""Added to the process's id it numbers the track of its device, far above every thread: some viewers want tracks to be
numbers, and no two of them the same in the whole file."""

_APPEND = os.O_WRONLY | os.O_APPEND
_TAIL = 1 << 20  # bytes, more than any line has
_quoted = functools.lru_cache(maxsize=1024)(json.dumps)


class Trace(Protocol):
    """Where a process notes what it does: a `Tracer`, or `NO_TRACE`."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """A span that lasts as long as the `with` block does; spans may be nested."""
        ...

    def span(self, name: str, start: int, stop: int, cpu: tuple[int, int] | None = None) -> None:
        """A span that was measured elsewhere, in nanoseconds of `time.monotonic_ns`.

        cpu: start and stop in nanoseconds of `time.thread_time_ns`.
        """
        ...

    def counter(self, name: str, value: float | Mapping[str, float]) -> None:
        """A number as it is now, or several by name on one chart; what is not finite is left out."""
        ...

    def cuda(self, name: str) -> AbstractContextManager[None]:
        """A span of what the device does with the work that the `with` block gives to it."""
        ...

    def flush(self) -> None:
        """Hands everything to the operating system."""
        ...

    def close(self) -> None:
        """Flushes; what is recorded afterwards goes nowhere."""
        ...


class Tracer:
    """Appends the events of this process to a trace file; one at a time in a process, for all of its threads.

    process: its name, "learner" or "collector 0"; a process that replaces another may have the same.
    cpu: spans also carry the thread's CPU time, at more than twice the cost.
    Events are kept for half a second at most, or as long as the span that is open then; `flush` before a long wait.
    What writing them takes is a span itself, "trace".
    """

    def __init__(self, path: Path | str, process: str, *, cpu: bool = False) -> None:
        origin = _origin(path)
        if origin is None:
            origin = self.begin(path)
        # The monotonic clock at time 0 of the file, by the clock on the wall: all that a reboot leaves to go by.
        self._anchor = monotonic_ns() - max(0, time_ns() - origin)
        self._pid = os.getpid()
        self._events: list[tuple[str, int, int, int, tuple[int, int] | None]] = []
        self._counts: list[tuple[str, int, Mapping[str, float]]] = []
        self._on_device: deque[_CudaSpan] = deque()
        self._device_free = 0
        self._new_tracks: dict[int, str] = {}
        self._thread = _Thread(self._new_tracks)
        self._new_tracks[self._thread.track] = "main"
        self._span_type = _CpuSpan if cpu else _Span
        self._lock = threading.Lock()
        self._due = 0
        self._descriptor = durable.open_regular(path, _APPEND | os.O_CREAT)
        now, main = self._microseconds(monotonic_ns()), self._thread.track
        name = _metadata("process_name", now, self._pid, main, name=process)
        order = _metadata("process_sort_index", now, self._pid, main, sort_index=_sort_index(process))
        _append(self._descriptor, [name, order])
        self.flush()

    @staticmethod
    def begin(path: Path | str) -> int:
        """Makes the file, or reopens that of a run that goes on; to be called before any process traces.

        Returns the time 0 of the file, in nanoseconds since 1970.
        """
        origin = _origin(path)
        if origin is not None:
            _cut(path)
            return origin
        origin = time_ns()
        event = {"name": "begin", "ph": "i", "s": "g", "ts": 0, "pid": os.getpid(), "tid": threading.get_native_id()}
        first = f"[\n{json.dumps(event | {'args': {'unix_nanoseconds': origin}})},\n"
        durable.write_file(Path(path), first.encode(), sync=False)
        return origin

    @staticmethod
    def end(path: Path | str) -> None:
        """Makes the file whole JSON; to be called when no process traces any more.

        Does nothing where somebody has removed the file.
        """
        if _origin(path) is None:
            return
        _cut(path)
        last = _metadata("process_labels", "0", os.getpid(), threading.get_native_id(), labels="ended")
        descriptor = durable.open_regular(path, _APPEND)
        try:
            _append(descriptor, [last.removesuffix(",\n"), "\n]\n"])
        finally:
            os.close(descriptor)

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return self._span_type(self, name)

    def span(self, name: str, start: int, stop: int, cpu: tuple[int, int] | None = None) -> None:
        self._events.append((name, self._thread.track, start, stop, cpu))
        if stop >= self._due or len(self._events) >= BUFFERED_EVENTS:
            begun = monotonic_ns()
            self.flush()
            self._events.append(("trace", self._thread.track, begun, monotonic_ns(), None))

    def counter(self, name: str, value: float | Mapping[str, float]) -> None:
        series = dict(value) if isinstance(value, Mapping) else {"value": value}
        self._counts.append((name, monotonic_ns(), series))
        if len(self._counts) >= BUFFERED_EVENTS:
            self.flush()

    def cuda(self, name: str) -> AbstractContextManager[None]:
        """As long as the work took on the device, on a track "cuda"; a plain span where there is no CUDA.

        Nothing waits for the device: its events are asked at later flushes, and what it has not done when the tracer
        is closed is left out. A span stands where it can have begun at the earliest, after the one before it, so these
        spans cannot be nested. Untested on a GPU.
        """
        event = self._cuda_event
        return self(name) if event is None else _CudaSpan(self._on_device, name, event)

    @functools.cached_property
    def _cuda_event(self) -> Callable[[], Any] | None:
        import torch

        return functools.partial(torch.cuda.Event, enable_timing=True) if torch.cuda.is_available() else None

    def flush(self) -> None:
        with self._lock:  # other threads go on recording meanwhile, behind what is taken here
            events, counts = self._events[:], self._counts[:]
            del self._events[: len(events)], self._counts[: len(counts)]
            self._write([self._span_line(*event) for event in events] + [self._count_line(*count) for count in counts])
            if self._on_device:
                self._write([self._span_line(*event) for event in self._done_on_device()])
            self._due = monotonic_ns() + BUFFERED_NANOSECONDS

    def close(self) -> None:
        self.flush()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, lines: list[str]) -> None:
        while self._new_tracks:
            track, name = self._new_tracks.popitem()
            lines.append(_metadata("thread_name", self._microseconds(monotonic_ns()), self._pid, track, name=name))
        if self._descriptor >= 0:
            _append(self._descriptor, lines)

    def _microseconds(self, time: int) -> str:
        return f"{(time - self._anchor) / 1000:.3f}"

    def _span_line(self, name: str, track: int, start: int, stop: int, cpu: tuple[int, int] | None) -> str:
        thread = "" if cpu is None else f'"tts":{cpu[0] / 1000:.3f},"tdur":{(cpu[1] - cpu[0]) / 1000:.3f},'
        return (
            f'{{"name":{_quoted(name)},"ph":"X","ts":{(start - self._anchor) / 1000:.3f},'
            f'"dur":{(stop - start) / 1000:.3f},{thread}"pid":{self._pid},"tid":{track}}},\n'
        )

    def _count_line(self, name: str, time: int, series: Mapping[str, float]) -> str:
        numbers = {each: float(value) for each, value in series.items() if math.isfinite(value)}
        return (
            f'{{"name":{_quoted(name)},"ph":"C","ts":{self._microseconds(time)},'
            f'"pid":{self._pid},"tid":{self._thread.track},"args":{json.dumps(numbers)}}},\n'
        )

    def _done_on_device(self) -> Iterator[tuple[str, int, int, int, None]]:
        track = CUDA_TRACK + self._pid
        while self._on_device and self._on_device[0].stop.query():
            span = self._on_device.popleft()
            start = max(span.given, self._device_free)
            if not self._device_free:
                self._new_tracks[track] = "cuda"
            self._device_free = start + round(span.start.elapsed_time(span.stop) * 1e6)
            yield span.name, track, start, self._device_free, None


class _Span:
    __slots__ = ("_name", "_start", "_tracer")

    def __init__(self, tracer: Tracer, name: str) -> None:
        self._tracer = tracer
        self._name = name

    def __enter__(self) -> None:
        self._start = monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tracer.span(self._name, self._start, monotonic_ns())
        if kind is not None:  # perhaps nobody catches it
            self._tracer.flush()


class _CpuSpan:
    __slots__ = ("_cpu_start", "_name", "_start", "_tracer")

    def __init__(self, tracer: Tracer, name: str) -> None:
        self._tracer = tracer
        self._name = name

    def __enter__(self) -> None:
        self._start = monotonic_ns()
        self._cpu_start = thread_time_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cpu_stop = thread_time_ns()
        self._tracer.span(self._name, self._start, monotonic_ns(), (self._cpu_start, cpu_stop))
        if kind is not None:
            self._tracer.flush()


class _CudaSpan:
    """given: when the device was given the work. start, stop: its events, which it reaches later."""

    __slots__ = ("_on_device", "given", "name", "start", "stop")

    def __init__(self, on_device: deque[_CudaSpan], name: str, event: Callable[[], Any]) -> None:
        self._on_device = on_device
        self.name = name
        self.start, self.stop = event(), event()

    def __enter__(self) -> None:
        self.given = monotonic_ns()
        self.start.record()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.record()
        self._on_device.append(self)


class _Thread(threading.local):
    """The track of the thread that looks; a thread that looks for the first time is put down under its name."""

    def __init__(self, new_tracks: dict[int, str]) -> None:
        self.track = threading.get_native_id()
        new_tracks[self.track] = threading.current_thread().name


class _NoSpan:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NO_SPAN = _NoSpan()


class _NoTrace:
    """Notes nothing."""

    __slots__ = ()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return _NO_SPAN

    def span(self, name: str, start: int, stop: int, cpu: tuple[int, int] | None = None) -> None:
        pass

    def counter(self, name: str, value: float | Mapping[str, float]) -> None:
        pass

    def cuda(self, name: str) -> AbstractContextManager[None]:
        return _NO_SPAN

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


NO_TRACE: Trace = _NoTrace()


def _metadata(kind: str, microseconds: str, pid: int, track: int, **arguments: str | int) -> str:
    return (
        f'{{"name":"{kind}","ph":"M","ts":{microseconds},"pid":{pid},"tid":{track},"args":{json.dumps(arguments)}}},\n'
    )


def _sort_index(process: str) -> int:
    """The learner first, then what has a name alone, then what is numbered, by its number."""
    number = process.rpartition(" ")[2]
    return 0 if process == "learner" else 2 + int(number) if number.isdecimal() else 1


def _append(descriptor: int, lines: list[str]) -> None:
    """Writes whole lines in one call, between which and another process's the system lets nothing come.

    Where the system takes less than the whole, the rest follows.
    """
    rest = memoryview("".join(lines).encode())
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _origin(path: Path | str) -> int | None:
    """When the file was begun, in nanoseconds since 1970; None where there is no file, or not even its first event."""
    try:
        with os.fdopen(durable.open_regular(path, os.O_RDONLY), "rb") as file:
            bracket, event = file.readline(), file.readline()
        return int(json.loads(event.strip().removesuffix(b","))["args"]["unix_nanoseconds"]) if bracket else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _cut(path: Path | str) -> None:
    """Drops what follows the last event with its comma: how a file ends, or a line that a crash tore."""
    with os.fdopen(durable.open_regular(path, os.O_RDWR), "r+b") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _TAIL)
        file.seek(start)
        file.truncate(start + file.read().rfind(b",\n") + 2)
