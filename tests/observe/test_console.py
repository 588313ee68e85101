"""The console: a live panel on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import rich.console

import soak
from offbeat.observe import console as module
from offbeat.observe.console import Console, format_duration, format_number

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
METRICS = {
    "update": 4_000,
    "return_100": -312.44,
    "length_100": 200.0,
    "steps_per_second": 100.0,
    "updates_per_second": 80.0,
    "critic_loss": 0.5,
    "policy_lag": 3.0,
}


@dataclass(frozen=True)
class Standing:
    step: int = 5_000
    updates: int = 4_000
    episodes: int = 25
    return_100: float | None = -312.44
    length_100: float | None = 200.0
    success_100: float | None = None
    steps_per_second: float = 100.0
    updates_per_second: float = 80.0
    losses: Mapping[str, float] = field(default_factory=lambda: {"critic_loss": 0.5, "temperature": 0.25})


def terminal() -> tuple[rich.console.Console, io.StringIO]:
    file = io.StringIO()
    return rich.console.Console(file=file, force_terminal=True, width=100, color_system=None), file


def last_frame(file: io.StringIO) -> str:
    return file.getvalue().rsplit("╭", 1)[-1]


def test_the_panel_shows_the_progress_of_the_run() -> None:
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start(["SAC on Pendulum-v1"])
        console.progress(Standing())
        console.evaluation(4_000, -150.25, 80.5, 10, best=True)
        console.checkpoint(4_000, Path("runs/one/checkpoints/4000"))
    assert "SAC on Pendulum-v1" in file.getvalue()
    frame = last_frame(file)
    for expected in (
        "50%",
        "ETA 0:00:50",
        "5,000 of 10,000 steps (100/s)",
        "4,000 updates (80/s)",
        "-312.4 mean return   200 mean length   25 episodes",
        "-150.2 (std 80.5) at step 4,000   best -150.2",
        "critic loss 0.5",
        "temperature 0.25",
        "the best so far",
        "checkpoint checkpoints/4000",
        "runs/one",
    ):
        assert expected in frame


def test_success_is_shown_if_episodes_report_it() -> None:
    out, file = terminal()
    plain = io.StringIO()
    for stream in (out, plain):
        with Console("runs/one", 10_000, stream=stream) as console:
            console.start([])
            console.progress(replace(Standing(), success_100=0.85))
            console.log(5_000, METRICS | {"success_100": 0.85})
            console.evaluation(4_000, -150.25, 80.5, 10, best=False, success=0.9)
    assert "-312.4 mean return   success 0.85   200 mean length" in last_frame(file)
    assert "-150.2 (std 80.5), success 0.9 at step 4,000" in last_frame(file)
    assert "| length 200 | success 0.85 | updates" in plain.getvalue()
    assert "step 4,000: evaluation -150.2 (std 80.5), success 0.9 over 10 episodes" in plain.getvalue()


def test_wait_times_are_shown_with_collectors() -> None:
    waited = METRICS | {"learner_waited": 61.0, "collectors_waited": 5.0}
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        console.log(5_000, waited)
        console.progress(Standing())
    assert "waited: learner 0:01:01, collectors 0:00:05 | lag 3 updates" in last_frame(file)
    plain = io.StringIO()
    with Console("runs/one", 10_000, stream=plain) as console:
        console.log(5_000, waited)
        console.log(6_000, METRICS)
    first, second = plain.getvalue().splitlines()
    assert "waited: learner 0:01:01" in first
    assert "waited" not in second


def test_a_worse_evaluation_leaves_the_best_as_it_was() -> None:
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        console.evaluation(1_000, -100.0, 1.0, 10, best=True)
        console.evaluation(2_000, -900.0, 1.0, 10, best=False)
    assert "-900 (std 1) at step 2,000   best -100 at step 1,000" in last_frame(file)


@pytest.mark.parametrize(("total_updates", "share", "left"), [(None, "50%", "0:00:50"), (4_800, "83%", "0:00:10")])
def test_progress_and_eta_follow_the_limit_that_is_nearer(total_updates: int | None, share: str, left: str) -> None:
    out, file = terminal()
    with Console("runs/one", 10_000, total_updates, stream=out) as console:
        console.start([])
        console.progress(Standing())
    assert share in last_frame(file)
    assert f"ETA {left}" in last_frame(file)
    assert ("of 4,800 updates" in last_frame(file)) == (total_updates is not None)


def test_unknown_numbers_are_shown_as_unknown() -> None:
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        console.progress(Standing(0, 0, 0, None, None, None, float("nan"), float("nan"), {}))
    assert "- mean return" in last_frame(file)
    assert "ETA -" in last_frame(file)


def test_a_note_stays_on_the_screen_above_the_panel() -> None:
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        console.note("this resume is not exact")
    assert file.getvalue().index("this resume is not exact") < file.getvalue().rindex("╭")


def test_text_with_brackets_is_shown_as_it_is() -> None:
    out, file = terminal()
    with Console("runs/[red]one", 10_000, stream=out) as console:
        console.start(["[bold]start"])
        console.note("[/nothing] to close")
        console.finish([])
    for text in ("runs/[red]one", "[bold]start", "[/nothing] to close"):
        assert text in file.getvalue()


def fails(console: Console) -> None:
    raise KeyboardInterrupt


def finishes(console: Console) -> None:
    console.finish(["done"])


@pytest.mark.parametrize("ending", [fails, finishes])
def test_the_terminal_is_given_back_however_the_run_ends(ending: Callable[[Console], None]) -> None:
    out, file = terminal()
    try:
        with Console("runs/one", 10_000, stream=out) as console:
            console.start([])
            console.progress(Standing())
            ending(console)
    except KeyboardInterrupt:
        pass
    assert file.getvalue().count(HIDE_CURSOR) == file.getvalue().count(SHOW_CURSOR) == 1


def test_nothing_is_drawn_after_the_end() -> None:
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        console.finish(["done"])
        console.progress(Standing())
    assert file.getvalue().rstrip().endswith("done")


def test_the_last_frame_shows_the_end() -> None:
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        for step in range(9_990, 10_001):
            console.progress(Standing(step))
        console.finish([])
    assert "10,000 of 10,000 steps" in last_frame(file)


def test_frames_are_drawn_at_most_eight_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    out, file = terminal()
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        before = file.getvalue().count("╭")
        for tick in range(1_000):
            now = 100.0 + tick / 1_000
            console.progress(Standing())
        assert file.getvalue().count("╭") - before == 8


@pytest.mark.skipif(not soak.FULL, reason="what a call costs depends on how slow the machine is (make soak)")
@pytest.mark.soak
def test_a_call_without_a_frame_costs_microseconds() -> None:
    out, _ = terminal()
    standing, calls = Standing(), 20_000
    with Console("runs/one", 10_000, stream=out) as console:
        console.start([])
        console._next_frame = float("inf")
        durations = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(calls):
                console.progress(standing)
            durations.append((time.perf_counter() - start) / calls)
    assert min(durations) < 20e-6


def test_without_a_terminal_each_log_interval_is_one_line() -> None:
    file = io.StringIO()
    with Console("runs/one", 10_000, stream=file) as console:
        console.start(["SAC on Pendulum-v1"])
        for step in range(5_000, 5_100):
            console.progress(replace(Standing(), step=step))
        console.log(5_000, METRICS)
        console.evaluation(5_000, -150.25, 80.5, 10, best=True)
        console.checkpoint(5_000, "runs/one/checkpoints/5000")
        console.note("this resume is not exact")
        console.finish(["run: runs/one"])
    assert file.getvalue().splitlines() == [
        "SAC on Pendulum-v1",
        "step 5,000/10,000 (50%) | return -312.4 | length 200 | updates 4,000 | 100 steps/s | 80 updates/s "
        "| critic_loss 0.5 | ETA 0:00:50",
        "step 5,000: evaluation -150.2 (std 80.5) over 10 episodes, the best so far",
        "step 5,000: checkpoint checkpoints/5000",
        "note: this resume is not exact",
        "run: runs/one",
    ]


def test_forced_colour_does_not_bring_the_panel_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    with Console("runs/one", 10_000, stream=file) as console:
        console.start([])
        console.progress(Standing())
    assert file.getvalue() == ""


def test_quiet_prints_nothing_but_notes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Console("runs/one", 10_000, quiet=True) as console:
        console.start(["SAC on Pendulum-v1"])
        console.progress(Standing())
        console.log(5_000, METRICS)
        console.evaluation(5_000, -150.0, 80.0, 10, best=True)
        console.checkpoint(5_000, "runs/one/checkpoints/5000")
        console.note("this resume is not exact")
        console.finish(["run: runs/one"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "note: this resume is not exact\n"


def test_a_closed_pipe_makes_the_console_quiet_and_has_no_other_effect(capsys: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    reader, stream = os.fdopen(read_end), os.fdopen(write_end, "w")
    with Console("runs/one", 10_000, stream=stream) as console:
        console.start(["SAC on Pendulum-v1"])
        assert reader.readline() == "SAC on Pendulum-v1\n"
        assert not console.quiet
        reader.close()
        console.note("this resume is not exact")
        assert console.quiet
        console.log(5_000, METRICS)
        console.evaluation(5_000, -150.0, 80.0, 10, best=True)
        console.finish(["run: runs/one"])
    with pytest.raises(BrokenPipeError):  # what could not be written is still in the stream
        stream.close()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "note: this resume is not exact\n")


def test_notes_to_a_closed_standard_error_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    monkeypatch.setattr("sys.stderr", stream)
    with Console("runs/one", 10_000, quiet=True) as console:
        console.note("this resume is not exact")
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_closed_standard_output_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    with Console("runs/one", 10_000) as console:
        console.start(["SAC on Pendulum-v1"])
        console.log(5_000, METRICS)
        console.finish(["run: runs/one"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (0.0, "0"), (0.123456, "0.1235"), (-312.44, "-312.4"), (12_345.6, "12,346")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3_725, "1:02:05"), (float("inf"), "-")]
)
def test_durations_are_hours_minutes_and_seconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
