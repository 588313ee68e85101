"""The summary of a trace is correct, and `validate` finds violations of the format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offbeat.cli import main
from offbeat.observe.trace_summary import read, summarise
from trace_format import validate


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text("[\n" + "".join(json.dumps(event) + ",\n" for event in events))
    return path


def span(name: str, start: float, stop: float, pid: int = 1, tid: int = 1) -> dict[str, Any]:
    return {"name": name, "ph": "X", "ts": start, "dur": stop - start, "pid": pid, "tid": tid}


def metadata(kind: str, pid: int = 1, tid: int = 1, ts: float = 0, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": ts, "pid": pid, "tid": tid, "args": args}


def test_self_times_shares_and_what_is_unattributed_on_a_trace_made_by_hand(tmp_path: Path) -> None:
    events = [
        metadata("process_name", pid=2, name="collector 0"),
        metadata("process_sort_index", pid=2, sort_index=2),
        span("act", 10, 30, pid=2),
        metadata("process_name", name="learner"),
        span("critic", 20, 50),
        span("actor", 50, 60),
        span("update", 10, 70),  # 20 in itself
        span("critic", 110, 120),
        span("update", 110, 130),  # 10 in itself
        {"name": "replay", "ph": "C", "ts": 200, "pid": 1, "tid": 1, "args": {"value": 5}},
        span("update", 100, 190, tid=9),
        metadata("thread_name", tid=9, name="cuda"),
        metadata("process_name", pid=3, ts=1000, name="collector 0"),  # a second process of the name
        metadata("process_sort_index", pid=3, ts=1000, sort_index=2),
        span("act", 1010, 1040, pid=3),
        span("wait", 1040, 1050, pid=3),
    ]
    learner, cuda, collector = summarise(write(tmp_path / "trace.json", events))
    assert (learner.process, learner.track, cuda.track, collector.process) == ("learner", "", "cuda", "collector 0")
    microsecond = 1e-6
    assert learner.wall == pytest.approx(200 * microsecond)
    assert {each.name: each.total for each in learner.spans} == pytest.approx(
        {"update": 30 * microsecond, "critic": 40 * microsecond, "actor": 10 * microsecond}
    )
    assert [each.name for each in learner.spans] == ["critic", "update", "actor"]
    update = learner.spans[1]
    assert (update.count, update.share) == (2, pytest.approx(0.15))
    assert (update.mean, update.longest) == (pytest.approx(40 * microsecond), pytest.approx(60 * microsecond))
    assert learner.unattributed == pytest.approx(120 * microsecond)
    assert (cuda.spans[0].total, cuda.spans[0].share) == (pytest.approx(90 * microsecond), pytest.approx(0.45))
    assert cuda.unattributed is None
    assert collector.wall == pytest.approx((30 + 50) * microsecond)
    assert {each.name: (each.count, each.total) for each in collector.spans} == {
        "act": (2, pytest.approx(50 * microsecond)),
        "wait": (1, pytest.approx(10 * microsecond)),
    }
    assert collector.unattributed == pytest.approx(20 * microsecond)


def test_a_process_id_that_comes_again_is_another_process(tmp_path: Path) -> None:
    events = [
        metadata("process_name", name="learner"),
        span("update", 0, 10),
        metadata("process_name", ts=1_000_000, name="learner"),
        span("update", 1_000_000, 1_000_020),
    ]
    (learner,) = summarise(write(tmp_path / "trace.json", events))
    assert learner.wall == pytest.approx(30e-6)
    assert learner.unattributed == pytest.approx(0)


def test_a_span_inside_one_of_its_own_name_is_counted_once_in_time(tmp_path: Path) -> None:
    (process,) = summarise(write(tmp_path / "trace.json", [span("a", 0, 100), span("a", 10, 40), span("a", 10, 20)]))
    assert process.process == "process 1"  # it has no process_name event
    assert (process.spans[0].count, process.spans[0].total) == (3, pytest.approx(100e-6))
    assert process.unattributed == pytest.approx(0)


def test_a_line_torn_in_the_middle_of_the_file_costs_that_line_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", [metadata("process_name", name="a"), span("one", 0, 1), span("two", 1, 2)])
    path.write_text(path.read_text().replace('"one", "ph"', '"o'))
    assert [event["name"] for event in read(path)] == ["process_name", "two"]
    assert [each.name for each in summarise(path)[0].spans] == ["two"]
    assert validate(path)[0].startswith("not a JSON array")


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"ph": "X"}, "no name"),
        ({"ph": "?"}, "ph='?'"),
        ({"pid": None}, "pid=None"),
        ({"tid": "cuda"}, "tid='cuda'"),
        ({"ts": "3"}, "ts='3'"),
        ({"ts": -1}, "ts=-1"),
        ({"dur": -1}, "dur=-1"),
        ({"dur": None}, "dur=None"),
        (metadata("process_name"), "args.name"),
        (metadata("process_sort_index", name="a"), "args.sort_index"),
        ({"name": "a", "ph": "C", "args": {"a": "1"}}, "counter"),
        ({"args": [1]}, "args"),
        (span("late", 5, 11), "'late'"),
    ],
)
def test_every_error_in_an_event_is_found(tmp_path: Path, event: dict[str, Any], problem: str) -> None:
    good = span("good", 0, 10)
    assert validate(write(tmp_path / "good.json", [good, span("inside", 0, 5), span("inside", 5, 10)])) == []
    wrong = good | event
    if problem == "no name":
        del wrong["name"]
    (found,) = validate(write(tmp_path / "wrong.json", [good, wrong]))
    assert problem in found


def test_a_file_that_is_no_array_is_found(tmp_path: Path) -> None:
    for content in ('{"traceEvents": []}', "[\n{}\n{}\n]\n", ""):
        (tmp_path / "trace.json").write_text(content)
        assert validate(tmp_path / "trace.json") != []


def test_the_command_prints_the_table_and_where_the_trace_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        metadata("process_name", name="learner"),
        span("update", 0, 750_000),
        span("critic", 0, 250_000),
        span("log", 999_999, 1e6),
    ]
    path = write(tmp_path / "trace.json", events)
    assert main(["trace", str(tmp_path)]) == 0
    output = capsys.readouterr()
    rows = [line.split() for line in output.out.splitlines()]
    assert ["learner", "wall-clock", "1.00", "s"] in rows
    assert ["update", "1", "500", "ms", "50.0%", "750", "ms", "750", "ms"] in rows
    assert ["critic", "1", "250", "ms", "25.0%", "250", "ms", "250", "ms"] in rows
    assert ["log", "1", "1.0", "µs", "0.0%", "1.0", "µs", "1.0", "µs"] in rows
    assert ["unattributed", "250", "ms", "25.0%"] in rows
    assert output.out.splitlines()[-1] == f"trace: {path} (open it in ui.perfetto.dev or chrome://tracing)"


def test_the_command_explains_how_to_get_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "train with --trace" in output.err
