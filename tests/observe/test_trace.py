"""The tracer: events of several processes are valid, complete and in order, also after a crash and a resume."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import soak
from offbeat import trace
from offbeat.observe.trace_summary import read, summarise
from offbeat.trace import NO_TRACE, Trace, Tracer
from trace_format import validate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Tracer.begin(tmp_path / "trace.json")
    return tmp_path / "trace.json"


def spans(path: Path, name: str | None = None) -> list[dict[str, Any]]:
    """The spans in a file, without the tracer's own "trace" spans."""
    found = [event for event in read(path) if event["ph"] == "X" and event["name"] != "trace"]
    return [event for event in found if name in (None, event["name"])]


def names(path: Path) -> list[str]:
    return [event["name"] for event in spans(path)]


def arguments(path: Path, name: str) -> list[dict[str, Any]]:
    return [event["args"] for event in read(path) if event["name"] == name]


def test_an_ended_trace_is_strict_json_and_valid(path: Path) -> None:
    tracer = Tracer(path, "learner")
    with tracer("update"):
        pass
    tracer.close()
    Tracer.end(path)
    events = json.loads(path.read_text())
    assert [event["name"] for event in events if event["ph"] == "X"] == ["update"]
    assert validate(path) == []
    assert path.read_text().startswith("[\n")


def test_a_trace_without_its_end_or_with_an_incomplete_line_is_valid(path: Path) -> None:
    tracer = Tracer(path, "learner")
    for name in ("first", "second"):
        tracer.span(name, time.monotonic_ns(), time.monotonic_ns())
    tracer.close()
    assert (validate(path), names(path)) == ([], ["first", "second"])
    whole = path.read_bytes()
    torn = whole.rindex(b"second") + 3
    path.write_bytes(whole[:torn])
    assert (validate(path), names(path)) == ([], ["first"])


def test_events_are_in_the_file_when_the_process_is_killed_half_a_second_later(path: Path) -> None:
    script = """if True:
        import os, signal, sys, time
        from offbeat import trace
        now = time.monotonic_ns()
        trace.monotonic_ns = lambda: now
        tracer = trace.Tracer(sys.argv[1], "learner")
        for number in range(70):
            with tracer("update"):
                now += 10_000_000
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -9
    assert names(path).count("update") == 50
    assert validate(path) == []


def test_an_exception_leaves_its_spans_in_the_file(path: Path) -> None:
    tracer = Tracer(path, "learner")
    with pytest.raises(KeyError), tracer("outer"), tracer("inner"):
        raise KeyError
    assert names(path) == ["inner", "outer"]


def test_a_full_buffer_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "BUFFERED_NANOSECONDS", 10**15)
    tracer = Tracer(path, "learner")
    for _ in range(trace.BUFFERED_EVENTS - 1):
        tracer.span("update", 0, 0)
    assert spans(path) == []
    tracer.span("update", 0, 0)
    assert len(spans(path)) == trace.BUFFERED_EVENTS
    for _ in range(trace.BUFFERED_EVENTS):
        tracer.counter("replay", 1)
    assert len(arguments(path, "replay")) == trace.BUFFERED_EVENTS


def test_processes_that_append_at_once_tear_no_line_and_lose_no_event(path: Path) -> None:
    script = """if True:
        import sys, time
        from offbeat import trace
        trace.BUFFERED_EVENTS = 50  # many writes
        tracer = trace.Tracer(sys.argv[1], sys.argv[2])
        print(flush=True)
        sys.stdin.readline()
        for number in range(5_000):
            if number == 2_500:  # the others have begun before any ends
                tracer.flush()
                print(flush=True)
                sys.stdin.readline()
            with tracer(f"{sys.argv[2]}, {number}"):
                time.sleep(0.001 * (number % 100 == 0))
        tracer.close()
    """
    processes = [
        subprocess.Popen([sys.executable, "-c", script, path, f"p{one}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for one in range(3)
    ]
    for _ in range(2):  # once when all have started, and once in the middle
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
    assert [process.communicate() and process.returncode for process in processes] == [0, 0, 0]
    Tracer.end(path)
    assert validate(path) == []
    assert Counter(names(path)) == Counter(f"p{one}, {number}" for one in range(3) for number in range(5_000))
    writers = [event["pid"] for event in read(path)]
    assert sum(one != other for one, other in itertools.pairwise(writers)) >= 4  # they wrote in turns


def test_a_write_that_the_system_cuts_short_is_finished(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = Tracer(path, "learner")
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:7]))
    with tracer("update"):
        pass
    tracer.close()
    assert names(path) == ["update"]
    assert validate(path) == []


@pytest.mark.parametrize("ending", ["ended", "crashed", "torn"])
def test_a_resumed_run_continues_in_the_same_file_at_later_times(path: Path, ending: str) -> None:
    for number in range(2):
        Tracer.begin(path)
        tracer = Tracer(path, "learner")
        with tracer(f"run {number}"):
            time.sleep(0.01)
        tracer.close()
        if ending == "ended":
            Tracer.end(path)
        if ending == "torn":
            path.write_bytes(path.read_bytes() + b'{"name":"to')
    assert names(path) == ["run 0", "run 1"]
    assert validate(path) == []
    first, second = spans(path)
    assert second["ts"] >= first["ts"] + first["dur"]
    assert second["ts"] < 60e6  # measured from the file's time 0, not from the clock's
    assert path.read_bytes().count(b"[\n") == 1
    Tracer.end(path)
    Tracer.end(path)
    json.loads(path.read_text())


def test_a_removed_trace_starts_again(path: Path) -> None:
    path.unlink()
    Tracer.end(path)
    assert not path.exists()
    tracer = Tracer(path, "collector 0")
    with tracer("act"):
        pass
    tracer.close()
    assert (names(path), validate(path)) == (["act"], [])


def test_tracks_are_named_and_the_learner_is_first(path: Path) -> None:
    order = ["collector 10", "evaluation", "collector 2", "learner"]
    for process in order:
        Tracer(path, process).close()
    found = [each["name"] for each in arguments(path, "process_name")]
    places = [each["sort_index"] for each in arguments(path, "process_sort_index")]
    assert found == order
    ordered = [name for _, name in sorted(zip(places, found, strict=True))]
    assert ordered == ["learner", "evaluation", "collector 2", "collector 10"]
    assert arguments(path, "thread_name") == [{"name": "main"}] * 4
    assert {event["pid"] for event in read(path)} == {os.getpid()}


def test_a_span_inside_another_lies_inside_it_in_time(path: Path) -> None:
    tracer = Tracer(path, "learner")
    for _ in range(100):
        with tracer("outer"), tracer("inner"):
            pass
    tracer.close()
    assert validate(path) == []
    for inner, outer in zip(spans(path, "inner"), spans(path, "outer"), strict=True):
        assert outer["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_the_time_of_a_span_is_the_clocks(path: Path) -> None:
    tracer = Tracer(path, "learner")
    before = time.monotonic_ns()
    with tracer("sleep"):
        time.sleep(0.02)
    after = time.monotonic_ns()
    tracer.span("around", before, after)
    tracer.close()
    (sleep,), (around,) = spans(path, "sleep"), spans(path, "around")
    assert around["dur"] == pytest.approx((after - before) / 1000, abs=0.0011)
    assert 20_000 <= sleep["dur"] <= around["dur"]
    assert around["ts"] <= sleep["ts"]


def test_two_processes_share_one_clock(path: Path) -> None:
    script = (
        "import sys; from offbeat.trace import Tracer; t = Tracer(sys.argv[1], 'b')\nwith t('inside'): pass\nt.close()"
    )
    tracer = Tracer(path, "learner")
    with tracer("outside"):
        subprocess.run([sys.executable, "-c", script, path], check=True)
    tracer.close()
    (inside,), (outside,) = spans(path, "inside"), spans(path, "outside")
    assert inside["pid"] != outside["pid"]
    assert outside["ts"] < inside["ts"] < inside["ts"] + inside["dur"] < outside["ts"] + outside["dur"]


def test_counters_hold_one_number_or_several_and_none_that_json_lacks(path: Path) -> None:
    tracer = Tracer(path, "learner")
    tracer.counter("replay", 100)
    tracer.counter("lag", {"mean": 1.5, "most": 3, "unknown": float("nan")})
    tracer.close()
    assert arguments(path, "replay") == [{"value": 100.0}]
    assert arguments(path, "lag") == [{"mean": 1.5, "most": 3.0}]
    assert {event["ph"] for event in read(path) if event["name"] in ("replay", "lag")} == {"C"}
    assert validate(path) == []


def test_cpu_time_distinguishes_working_from_sleeping(path: Path) -> None:
    tracer = Tracer(path, "learner", cpu=True)
    with tracer("sleep"):
        time.sleep(0.05)
    with tracer("work"):
        stop = time.thread_time() + 0.05
        while time.thread_time() < stop:
            pass
    tracer.close()
    sleep, work = spans(path)
    assert 0 <= sleep["tdur"] < sleep["dur"]
    assert 50_000 <= work["tdur"] <= work["dur"]
    assert work["tts"] >= sleep["tts"] + sleep["tdur"]
    assert validate(path) == []


def test_each_thread_has_a_track_of_its_own_under_its_name(path: Path) -> None:
    tracer = Tracer(path, "learner")

    def work() -> None:
        for _ in range(3_000):
            with tracer("beside"):
                pass

    thread = threading.Thread(target=work, name="prefetch")
    thread.start()
    for _ in range(3_000):
        with tracer("main"):
            pass
    thread.join()
    tracer.close()
    assert Counter(names(path)) == {"beside": 3_000, "main": 3_000}
    tracks = {event["args"]["name"]: event["tid"] for event in read(path) if event["name"] == "thread_name"}
    assert {event["tid"] for event in spans(path, "beside")} == {tracks["prefetch"]}
    assert {event["tid"] for event in spans(path, "main")} == {tracks["main"]}
    assert [(each.track, {one.name for one in each.spans} - {"trace"}) for each in summarise(path)] == [
        ("", {"main"}),
        ("prefetch", {"beside"}),
    ]
    assert validate(path) == []


def test_a_name_may_hold_any_character(path: Path) -> None:
    name = 'a "quoted"\nname, größer\\ ]'
    tracer = Tracer(path, name)
    with tracer(name):
        pass
    tracer.close()
    assert names(path) == [name]
    assert summarise(path)[0].process == name
    assert validate(path) == []


def test_events_after_close_are_dropped(path: Path) -> None:
    tracer = Tracer(path, "learner")
    tracer.close()
    tracer.close()
    before = path.read_bytes()
    with tracer("late"):
        tracer.flush()
    tracer.flush()
    assert path.read_bytes() == before


class FakeDevice:
    """Stands in for torch.cuda: work takes 2 ms, one after the other, and is done once `done` is set."""

    done = 0
    recorded = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeDevice.recorded += 1
        self.number = FakeDevice.recorded

    def query(self) -> bool:
        return self.number <= FakeDevice.done

    def elapsed_time(self, other: FakeDevice) -> float:
        return 2.0 * (other.number - self.number)


def test_cuda_spans_are_written_on_their_own_track_once_the_device_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.Event", FakeDevice)
    monkeypatch.setattr(FakeDevice, "recorded", 0)
    monkeypatch.setattr(FakeDevice, "done", 2)
    tracer = Tracer(path, "learner")
    for name in ("first", "second", "third"):
        with tracer.cuda(name):
            pass
    tracer.flush()
    assert names(path) == ["first"]
    FakeDevice.done = 4
    tracer.close()
    assert names(path) == ["first", "second"]
    first, second = spans(path)
    assert first["dur"] == second["dur"] == 2_000
    assert second["ts"] == pytest.approx(first["ts"] + 2_000, abs=0.002)
    (cuda,) = (each for each in summarise(path) if each.track)
    assert (cuda.process, cuda.track, cuda.unattributed) == ("learner", "cuda", None)
    assert validate(path) == []


def test_without_cuda_a_cuda_span_is_a_plain_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tracer = Tracer(path, "learner")
    with tracer.cuda("update"):
        pass
    tracer.close()
    assert [each.track for each in summarise(path)] == [""]
    assert names(path) == ["update"]


def test_no_trace_has_the_methods_of_a_tracer_and_makes_nothing() -> None:
    methods = [name for name, value in vars(Trace).items() if inspect.isfunction(value)]
    assert sorted(methods) == ["__call__", "close", "counter", "cuda", "flush", "span"]
    for name in methods:
        given = inspect.signature(getattr(type(NO_TRACE), name))
        assert given == inspect.signature(getattr(Tracer, name)) == inspect.signature(getattr(Trace, name))
    assert NO_TRACE("a") is NO_TRACE("b") is NO_TRACE.cuda("c")
    with NO_TRACE("outer"), NO_TRACE("inner"):
        NO_TRACE.span("a", 0, 1)
        NO_TRACE.counter("a", 1)
    NO_TRACE.flush()
    NO_TRACE.close()
    with pytest.raises(KeyError), NO_TRACE("a"):
        raise KeyError


def cost(tracer: Trace) -> float:
    """CPU seconds per span, the minimum of a few attempts."""

    def attempt() -> float:
        start = time.thread_time()
        for _ in range(5_000):
            with tracer("update"):
                pass
        return (time.thread_time() - start) / 5_000

    return min(attempt() for _ in range(5))


@pytest.mark.skipif(not soak.FULL, reason="what a span costs depends on how slow the machine is (make soak)")
@pytest.mark.soak
def test_a_span_costs_microseconds_and_no_trace_a_fraction_of_that(path: Path) -> None:
    tracer = Tracer(path, "learner")
    traced = cost(tracer)
    tracer.close()
    assert traced < 50e-6
    assert cost(NO_TRACE) < 0.8 * traced
