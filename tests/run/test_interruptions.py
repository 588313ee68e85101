"""A stop request at any time changes no result: the resumed run equals the one that was never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import offbeat
import soak
from offbeat.collect import InProcess
from offbeat.errors import CheckpointError, OffbeatError, RunInterrupted, UsageError
from offbeat.observe.jsonl import read
from offbeat.run import api
from offbeat.run.checkpoint import digest
from offbeat.run.runner import Runner
from short_runs import train

TIMES = {"wall", "steps_per_second", "updates_per_second", "policy_lag_seconds"}


class StopAt:
    """Stands for `Stop`: the wish comes when it is asked for the k-th time."""

    at, asked = 10**9, 0

    def __enter__(self) -> StopAt:
        type(self).asked = 0
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self) -> bool:
        type(self).asked += 1
        return self.asked >= self.at


def stopped_or_finished(out: Path, name: str) -> Any:
    try:
        return train(out, name=name)
    except RunInterrupted as interrupted:
        return interrupted.result


def _lines(path: Path, name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in read(path / name)]


@pytest.mark.soak
def test_stopped_at_any_moment_and_resumed_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "Stop", StopAt)
    straight = train(tmp_path, name="straight")
    total = StopAt.asked
    statuses = set()
    # The last moments are those of the last updates and of the final evaluation: nothing of these may be lost either.
    for moment in sorted({*np.linspace(1, total, 14 if soak.FULL else 6).astype(int).tolist(), total - 12, total - 3}):
        monkeypatch.setattr(StopAt, "at", moment)
        stopped = stopped_or_finished(tmp_path, f"stopped-{moment}")
        statuses.add(stopped.status)
        monkeypatch.setattr(StopAt, "at", 10**9)
        resumed = offbeat.resume(stopped.path)
        assert resumed.status == "finished"
        assert digest(resumed.path) == digest(straight.path), f"stopped at moment {moment} of {total}"
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            assert _lines(resumed.path, name) == _lines(straight.path, name), f"{name}, moment {moment} of {total}"
        best = [(run.path / "checkpoints" / "best").read_text() for run in (resumed, straight)]
        assert best[0] == best[1]
    assert "stopped" in statuses


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run = train(tmp_path)
    before = {name: (run.path / name).read_bytes() for name in ("config.yaml", "summary.json", "metrics.jsonl")}
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"total_steps": 200, "hidden": (9,)}, UsageError, "hidden=9 cannot change"),
        ({"total_steps": 200, "checkpoint": "best"}, CheckpointError, "no replay"),
        ({"total_steps": 100}, UsageError, "is a total, .* give a larger one"),
        ({"total_updates": 10}, UsageError, "is a total"),
    ]
    for arguments, error, words in refused:
        with pytest.raises(error, match=words):
            offbeat.resume(run.path, **arguments)
        assert {name: (run.path / name).read_bytes() for name in before} == before
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert offbeat.resume(run.path).status == "finished"  # nothing to do
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == names


def test_lost_logs_do_not_keep_a_run_from_going_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path)
    (run.path / "metrics.jsonl").unlink()
    assert offbeat.resume(run.path, total_steps=160, quiet=True).status == "finished"
    assert "metrics.jsonl is shorter" in capsys.readouterr().err
    assert [line["step"] for line in read(run.path / "metrics.jsonl")] == [160]


def test_a_full_disk_is_reported_even_if_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("offbeat.run.directory.RunDirectory.log", full)
    monkeypatch.setattr("offbeat.observe.jsonl.Jsonl.write", full)
    with pytest.raises(OffbeatError, match=r"full.*offbeat resume"):
        train(tmp_path, name="run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_the_best_return_outlives_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tmp_path)
    best = (run.path / "checkpoints" / "best").read_text()
    worse = (tuple([-1e9] * 2), (10, 10))
    monkeypatch.setattr("offbeat.run.evaluators.run_episodes", lambda *arguments: worse)
    resumed = offbeat.resume(run.path, total_steps=200)
    assert resumed.history[-1].mean_return == -1e9
    assert (run.path / "checkpoints" / "best").read_text() == best
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["best_evaluation"]["mean_return"] == max(each.mean_return for each in run.history)


def test_threads_are_set_for_the_run_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def now() -> tuple[int, list[int]]:
        numpy = ThreadpoolController().select(internal_api="openblas").info()
        return torch.get_num_threads(), [each["num_threads"] for each in numpy]

    collect, seen = Runner._collect, []
    monkeypatch.setattr(Runner, "_collect", lambda self: (seen.append(now()), collect(self))[1])
    with ThreadpoolController().select(internal_api="openblas").limit(limits=2):
        before = now()
        train(tmp_path, threads=before[0] + 1)
        assert now() == before
    assert all(each == (before[0] + 1, [1] * len(before[1])) for each in seen)


def test_a_best_checkpoint_of_steps_that_are_taken_back_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([1.0, 2.0, 3.0, 0.0, 0.5, 0.1])
    monkeypatch.setattr("offbeat.run.evaluators.run_episodes", lambda *arguments: ((next(scores),) * 2, (10, 10)))
    run = train(tmp_path, eval_every=40)
    assert (run.path / "checkpoints" / "best").read_text().startswith("best-000000000120")
    offbeat.resume(run.path, checkpoint="step-000000000100", total_steps=200)
    assert (run.path / "checkpoints" / "best").read_text().startswith("best-000000000160")


class Interrupted(BaseException):
    """Stands for a signal that ends the process at once."""


def test_a_run_that_ended_before_its_first_checkpoint_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*arguments: object) -> None:
        raise Interrupted

    monkeypatch.setattr("offbeat.observe.console.Console.start", end)
    with pytest.raises(Interrupted):
        train(tmp_path, name="run")
    assert not (tmp_path / "run").exists()


def test_a_second_interrupt_within_a_step_saves_no_torn_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some environments have stepped and others have not: only the checkpoint before is whole."""
    monkeypatch.setattr(api, "Stop", StopAt)
    poll, polls = InProcess.poll, []

    def interrupted(self: Any, timeout: float) -> Any:
        polls.append(1)
        if len(polls) == 5:
            StopAt.at = 0  # the first signal has been handled; send the second
            raise KeyboardInterrupt
        return poll(self, timeout)

    straight = train(tmp_path, name="straight")
    monkeypatch.setattr(InProcess, "poll", interrupted)
    monkeypatch.setattr(StopAt, "at", 10**9)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, name="run")
    monkeypatch.setattr(StopAt, "at", 10**9)
    assert offbeat.resume(tmp_path / "run").status == "finished"
    assert digest(tmp_path / "run") == digest(straight.path)


def test_environments_that_fail_to_close_do_not_spoil_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("stuck")

    monkeypatch.setattr("offbeat.envs.inline.InlineVector.close", fail)
    assert train(tmp_path).status == "finished"
    assert "stuck" in capsys.readouterr().err


def test_a_total_of_updates_that_still_holds_is_named(tmp_path: Path) -> None:
    run = train(tmp_path, total_updates=50)
    with pytest.raises(UsageError, match="total_updates=50"):
        offbeat.resume(run.path, total_steps=200)
    assert offbeat.resume(run.path, total_steps=200, total_updates=90).status == "finished"
