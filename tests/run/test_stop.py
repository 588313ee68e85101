"""Requests to stop: what one signal, two at once, and a later one do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import offbeat
from offbeat.errors import RunInterrupted
from offbeat.run import stop
from offbeat.run.callbacks import ChunkEvent
from offbeat.run.stop import GRACE_SECONDS, Stop
from short_runs import train


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_come_together_are_one_request_and_a_later_one_ends_at_once(
    number: int, request: pytest.FixtureRequest
) -> None:
    # The tests themselves may run under nohup, where SIGHUP is ignored.
    request.addfinalizer(partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))
    clock = Clock()
    with Stop(clock) as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        for clock.now in (100.0, 100.0 + 0.5 * GRACE_SECONDS, 100.0 + GRACE_SECONDS):
            signal.raise_signal(number)
        clock.now = 100.0 + 1.1 * GRACE_SECONDS
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_closed_terminal_does_not_stop_a_run_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class Interrupting:
    """Sends this process signals when the run has made some steps."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def on_chunk(self, event: ChunkEvent) -> None:
        for number in self.numbers if event.step == 60 else ():
            os.kill(os.getpid(), number)


def test_an_interrupted_run_is_saved_and_then_ends_the_loop_around_it(tmp_path: Path) -> None:
    def seeds() -> None:
        for seed in range(3):
            train(tmp_path, name=str(seed), seed=seed, callbacks=[Interrupting(signal.SIGINT)])

    with pytest.raises(KeyboardInterrupt) as caught:
        seeds()
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    error = caught.value
    assert isinstance(error, RunInterrupted)
    assert (error.result.path, error.result.status) == (tmp_path / "0", "stopped")
    assert f"offbeat resume {tmp_path / '0'}" in str(error)
    assert offbeat.resume(error.result.path).status == "finished"


def test_two_signals_at_once_save_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "GRACE_SECONDS", 3600.0)  # however busy the machine is
    with pytest.raises(RunInterrupted) as caught:
        train(tmp_path, name="run", callbacks=[Interrupting(signal.SIGINT, signal.SIGINT, signal.SIGTERM)])
    assert caught.value.result.status == "stopped"
    with pytest.raises(RunInterrupted):
        offbeat.resume(tmp_path / "run", total_steps=200, callbacks=[At(160)])
    assert offbeat.resume(tmp_path / "run").status == "finished"


def test_a_signal_that_comes_again_after_the_command_is_done_leaves_its_exit_code() -> None:
    code = (
        "import os, signal, sys; from offbeat.cli import main; sys.argv = ['offbeat', '--version']; code = main(); "
        "os.kill(os.getpid(), signal.SIGINT); sys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


class At:
    def __init__(self, step: int) -> None:
        self.step = step

    def on_chunk(self, event: ChunkEvent) -> None:
        if event.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
