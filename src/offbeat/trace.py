"""Tracing: spans and counters of all processes of a run, in one file for Perfetto and chrome://tracing.

The file is the array form of the Trace Event Format, one event per line. Every process appends whole lines to it. Times
are microseconds since the file was created. Viewers read them as doubles: with microseconds since 1970, the resolution
would be a quarter of a microsecond, and adjacent spans would seem to overlap.
"""

from __future__ import annotations

import functools
import json
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic_ns, thread_time_ns, time_ns
from typing import Any

from offbeat import durable

BUFFERED_EVENTS = 2_000
BUFFERED_NANOSECONDS = 500_000_000
CUDA_TRACK = 1_000_000_000
"""CUDA_TRACK + process id is the track number of a process's device, larger than any thread id. Some viewers need track
numbers that are unique in the whole file."""

_APPEND = os.O_WRONLY | os.O_APPEND
_TAIL = 1 << 20  # bytes, longer than any line
_quoted = functools.lru_cache(maxsize=1024)(json.dumps)


class Trace:
    """The spans and counters of a process. This class records nothing (`NO_TRACE`), and `Tracer` writes them.

    file: for `open_trace` in another process; None if nothing is recorded.
    """

    file: tuple[Path, bool] | None = None

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Records the `with` block as a span; spans may be nested."""
        return _NO_SPAN

    def span(self, name: str, start: int, stop: int, cpu: tuple[int, int] | None = None) -> None:
        """Records a span that was measured elsewhere, in nanoseconds of `time.monotonic_ns`.

        cpu: start and stop in nanoseconds of `time.thread_time_ns`.
        """

    def counter(self, name: str, value: float | Mapping[str, float]) -> None:
        """Records the current value of a number, or of several by name in one chart; skips non-finite values."""

    def cuda(self, name: str) -> AbstractContextManager[None]:
        """Records the time that the device spends on the work launched in the `with` block."""
        return _NO_SPAN

    def flush(self) -> None:
        """Writes all buffered events to the file."""

    def close(self) -> None:
        """Flushes; later events are dropped."""


_NO_SPAN = nullcontext()
NO_TRACE = Trace()


class Tracer(Trace):
    """Appends the events of this process, of all its threads, to a trace file. Only one may be open per process.

    process: its name, "learner" or "collector 0"; a process that replaces another one may have the same name.
    cpu: spans also carry the thread's CPU time, at more than twice the cost.
    Events are buffered for at most half a second, or until the open span ends; call `flush` before a long wait. The
    time to write them is recorded as a span "trace".
    """

    def __init__(self, path: Path | str, process: str, *, cpu: bool = False) -> None:
        origin = _origin(path)
        if origin is None:
            origin = self.begin(path)
        # The monotonic clock at time 0 of the file, from the wall clock: the monotonic clock restarts at a reboot.
        self._anchor = monotonic_ns() - max(0, time_ns() - origin)
        self._pid = os.getpid()
        self._events: list[tuple[str, int, int, int, tuple[int, int] | None]] = []
        self._counts: list[tuple[str, int, Mapping[str, float]]] = []
        self._on_device: deque[_CudaSpan] = deque()
        self._device_free = 0
        self._new_tracks: dict[int, str] = {}
        self._thread = _Thread(self._new_tracks)
        self._new_tracks[self._thread.track] = "main"
        self.file = (Path(path), cpu)
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
        """Creates the file, or reopens the file of a resumed run. Call it before any process traces.

        Returns the file's time 0, in nanoseconds since 1970.
        """
        origin = _origin(path)
        if origin is not None:
            _drop_unfinished_line(path)
            return origin
        origin = time_ns()
        event = {"name": "begin", "ph": "i", "s": "g", "ts": 0, "pid": os.getpid(), "tid": threading.get_native_id()}
        first = f"[\n{json.dumps(event | {'args': {'unix_nanoseconds': origin}})},\n"
        durable.write_file(Path(path), first.encode(), sync=False)
        return origin

    @staticmethod
    def end(path: Path | str) -> None:
        """Completes the file to valid JSON. Call it when no process traces any more.

        Does nothing if the file was removed.
        """
        if _origin(path) is None:
            return
        _drop_unfinished_line(path)
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
        """Records the time that the work took on the device, on a track "cuda"; a normal span without CUDA.

        It never waits for the device: later flushes query its events, and work that is unfinished when the tracer is
        closed is left out. A span starts at the earliest possible time, after the previous one, so these spans cannot
        be nested. Untested on a GPU.
        """
        event = self._cuda_event
        return self(name) if event is None else _CudaSpan(self._on_device, name, event)

    @functools.cached_property
    def _cuda_event(self) -> Callable[[], Any] | None:
        import torch

        return functools.partial(torch.cuda.Event, enable_timing=True) if torch.cuda.is_available() else None

    def flush(self) -> None:
        with self._lock:  # other threads keep appending events behind those taken here
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tracer.span(self._name, self._start, monotonic_ns())
        if kind is not None:  # the exception may end the process
            self._tracer.flush()


class _CpuSpan(_Span):
    __slots__ = ("_cpu_start",)

    def __enter__(self) -> None:
        self._start = monotonic_ns()
        self._cpu_start = thread_time_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        cpu_stop = thread_time_ns()
        self._tracer.span(self._name, self._start, monotonic_ns(), (self._cpu_start, cpu_stop))
        if kind is not None:
            self._tracer.flush()


class _CudaSpan:
    """given: when the work was launched. start, stop: CUDA events, which the device reaches later."""

    __slots__ = ("_on_device", "given", "name", "start", "stop")

    def __init__(self, on_device: deque[_CudaSpan], name: str, event: Callable[[], Any]) -> None:
        self._on_device = on_device
        self.name = name
        self.start, self.stop = event(), event()

    def __enter__(self) -> None:
        self.given = monotonic_ns()
        self.start.record()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop.record()
        self._on_device.append(self)


class _Thread(threading.local):
    """The track of the current thread. The first access in a thread registers its name in `new_tracks`."""

    def __init__(self, new_tracks: dict[int, str]) -> None:
        self.track = threading.get_native_id()
        new_tracks[self.track] = threading.current_thread().name


def open_trace(file: tuple[Path, bool] | None, process: str) -> Trace:
    """The trace of this process, in the file of another one's (`Trace.file`)."""
    return NO_TRACE if file is None else Tracer(file[0], process, cpu=file[1])


def _metadata(kind: str, microseconds: str, pid: int, track: int, **arguments: str | int) -> str:
    return (
        f'{{"name":"{kind}","ph":"M","ts":{microseconds},"pid":{pid},"tid":{track},"args":{json.dumps(arguments)}}},\n'
    )


def _sort_index(process: str) -> int:
    """The learner first, then processes without a number, then numbered processes by number."""
    number = process.rpartition(" ")[2]
    return 0 if process == "learner" else 2 + int(number) if number.isdecimal() else 1


def _append(descriptor: int, lines: list[str]) -> None:
    """Appends whole lines in one system call, so that lines of several processes do not mix.

    After a partial write, further calls write the rest.
    """
    rest = memoryview("".join(lines).encode())
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _origin(path: Path | str) -> int | None:
    """The file's time 0, in nanoseconds since 1970; None if there is no file, or no first event in it."""
    try:
        with os.fdopen(durable.open_regular(path, os.O_RDONLY), "rb") as file:
            bracket, event = file.readline(), file.readline()
        return int(json.loads(event.strip().removesuffix(b","))["args"]["unix_nanoseconds"]) if bracket else None
    except (FileNotFoundError, ValueError, KeyError):
        return None


def _drop_unfinished_line(path: Path | str) -> None:
    """Drops everything after the last complete event: the closing bracket, or a partial line after a crash."""
    with os.fdopen(durable.open_regular(path, os.O_RDWR), "r+b") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _TAIL)
        file.seek(start)
        file.truncate(start + file.read().rfind(b",\n") + 2)
