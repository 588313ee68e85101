"""Callbacks: what they see, how they end a run, and that they change nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import offbeat
from offbeat.errors import CallbackFault, UsageError
from offbeat.observe.jsonl import read
from offbeat.run.callbacks import METHODS, CheckpointEvent, ChunkEvent, EvaluationEvent, UpdateEvent
from offbeat.run.checkpoint import Checkpoints, digest
from short_runs import train


def summary(path: Path) -> dict[str, Any]:
    return json.loads((path / "summary.json").read_text())


class Witness:
    """Has all four methods and records the events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_chunk(self, event: ChunkEvent) -> None:
        assert len(event.chunk) == 20
        self.events.append(event)

    def on_update(self, event: UpdateEvent) -> None:
        assert event.agent.learner.updates == event.updates
        self.events.append(event)

    def on_evaluation(self, event: EvaluationEvent) -> None:
        self.events.append(event)

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        assert (event.checkpoint / "manifest.json").is_file()
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


def test_callbacks_receive_every_chunk_update_evaluation_and_checkpoint(tmp_path: Path) -> None:
    witness = Witness()
    run = train(tmp_path, callbacks=[witness])
    assert [event.step for event in witness.of(ChunkEvent)] == [20, 40, 60, 80, 100, 120]
    assert sum(event.count for event in witness.of(UpdateEvent)) == summary(run.path)["updates"] == 200
    assert max(event.count for event in witness.of(UpdateEvent)) <= 16
    assert [event.evaluation for event in witness.of(EvaluationEvent)] == run.history
    assert [event.step for event in witness.of(CheckpointEvent)] == [0, 60, 100, 120]
    assert {event.checkpoint.name for event in witness.of(CheckpointEvent)[-2:]} <= set(Checkpoints(run.path).names())
    assert {event.path for event in witness.events} == {run.path}
    with pytest.raises(dataclasses.FrozenInstanceError):
        witness.events[0].step = 3


def test_watching_changes_nothing_and_resume_tells_its_own_callbacks(tmp_path: Path) -> None:
    plain = train(tmp_path)
    watched = train(tmp_path, callbacks=[Witness()], total_steps=60)
    witness = Witness()
    resumed = offbeat.resume(watched.path, total_steps=120, callbacks=[witness])
    assert [event.step for event in witness.of(ChunkEvent)] == [80, 100, 120]
    assert digest(resumed.path) == digest(plain.path)


class EndAt:
    """Wants the end at the k-th call of one method."""

    def __init__(self, method: str, call: int, answer: Any) -> None:
        self.left, self.answer = call, answer
        setattr(self, method, self.count)

    def count(self, event: Any) -> Any:
        self.left -= 1
        return self.answer if self.left == 0 else None


@pytest.mark.parametrize(
    ("method", "call"), [("on_chunk", 2), ("on_chunk", 3), ("on_update", 7), ("on_evaluation", 1), ("on_checkpoint", 2)]
)
def test_a_run_that_a_callback_ends_is_finished_and_resumes_as_if_it_had_not_ended(
    method: str, call: int, tmp_path: Path
) -> None:
    straight = train(tmp_path, name="straight")
    ended = train(tmp_path, name="ended", callbacks=[EndAt(method, call, "enough")])
    written = summary(ended.path)
    assert ended.status == written["status"] == "finished"
    assert ended.stop_reason == written["stop_reason"] == "enough"
    assert written["env_steps"] < 120
    last = read(ended.path / "evaluations.jsonl")[-1]  # the final evaluation is of the last weights
    assert (last["step"], last["version"]) == (written["env_steps"], written["updates"])
    Checkpoints(ended.path).verify("latest")
    resumed = offbeat.resume(ended.path)
    assert (resumed.status, resumed.stop_reason, summary(resumed.path)["stop_reason"]) == ("finished", None, None)
    assert digest(resumed.path) == digest(straight.path)
    made = [(each.step, each.version, each.returns) for each in resumed.history]
    assert [each for each in straight.history if (each.step, each.version, each.returns) not in made] == []
    steps = [line["step"] for line in read(resumed.path / "metrics.jsonl")]
    assert len(steps) == len(set(steps))


def test_any_true_result_ends_the_run_and_all_callbacks_are_still_called(tmp_path: Path) -> None:
    witness = Witness()
    run = train(tmp_path, callbacks=[EndAt("on_chunk", 2, True), EndAt("on_chunk", 2, "later"), witness])
    assert run.stop_reason == "EndAt.on_chunk requested it"
    assert [event.step for event in witness.of(ChunkEvent)] == [20, 40]


def test_a_true_result_at_the_final_evaluation_or_checkpoint_has_no_effect(tmp_path: Path) -> None:
    late = [EndAt("on_evaluation", 1, "late"), EndAt("on_checkpoint", 2, "late")]
    run = train(tmp_path, callbacks=late, eval_every=0, checkpoint_every=0)
    assert [each.left for each in late] == [0, 0]
    assert run.stop_reason is None


def test_a_callback_that_raises_is_named_and_leaves_the_last_checkpoint_good(tmp_path: Path) -> None:
    class Faulty:
        def on_chunk(self, event: ChunkEvent) -> None:
            if event.step == 80:
                raise ZeroDivisionError("by nought")

    with pytest.raises(CallbackFault) as caught:
        train(tmp_path, name="run", callbacks=[Faulty()])
    path, words = tmp_path / "run", str(caught.value)
    for word in ("Faulty.on_chunk", "ZeroDivisionError", "step 80", "by nought", f"offbeat resume {path}"):
        assert word in words
    assert summary(path)["status"] == "failed"
    assert 'raise ZeroDivisionError("by nought")' in (path / "log.txt").read_text()
    Checkpoints(path).verify("latest")
    assert digest(offbeat.resume(path).path) == digest(train(tmp_path).path)


class Partial(offbeat.Callback):
    """Inherits what it does not say itself, and has a name in on_ that is no method."""

    on_gpu = False

    def on_evaluation(self, event: EvaluationEvent) -> str:
        return "inherited"


def test_a_callback_may_inherit_from_the_protocol(tmp_path: Path) -> None:
    assert train(tmp_path, callbacks=[Partial()]).stop_reason == "inherited"


class Misspelt:
    def on_evaluate(self, event: Any) -> None: ...

    def on_chunk(self, event: Any) -> None: ...


class MisspeltHeir(offbeat.Callback):
    """Inherits all four, so that nothing is missing."""

    def on_evalution(self, event: Any) -> None: ...


class Foreign:
    """With a method that some other library calls."""

    def on_training_start(self) -> None: ...

    def on_chunk(self, event: Any) -> None: ...


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        ([print], r"callbacks\[0\].*at least one of on_chunk, on_update, on_evaluation, on_checkpoint"),
        ([Witness(), Witness], r"callbacks\[1\] is the class Witness.*Witness\(\)"),
        ([Misspelt()], r"a method on_evaluate, which no run calls: did you mean on_evaluation\?"),
        ([MisspeltHeir()], r"a method on_evalution, which no run calls: did you mean on_evaluation\?"),
        ([Foreign()], "a method on_training_start, which no run calls: rename it; the methods are on_chunk, on_up"),
        (Witness(), r"callbacks=\[\.\.\.\]"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_is_created(callbacks: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        train(tmp_path / "out", callbacks=callbacks)
    assert not (tmp_path / "out").exists()


def test_without_callbacks_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.run.callbacks.Callbacks.call", None)
    assert train(tmp_path, callbacks=[]).status == "finished"


def test_stop_return_ends_the_run_at_the_first_evaluation_that_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    monkeypatch.setattr("offbeat.run.evaluators.run_episodes", lambda *arguments: ((next(scores),) * 2, (10, 10)))
    run = train(tmp_path, stop_return=2.0)
    assert [each.mean_return for each in run.history] == [1.0, 2.0]
    assert summary(run.path)["env_steps"] == 80
    assert run.stop_reason == "an evaluation's mean return of 2 reached stop_return=2"
    resumed = offbeat.resume(run.path, total_steps=200)  # goes on, and ends at the next evaluation: it is still reached
    assert [each.mean_return for each in resumed.history] == [1.0, 2.0, 3.0]
    resumed = offbeat.resume(run.path, stop_return=100.0)
    assert (summary(run.path)["env_steps"], resumed.stop_reason) == (200, None)


def test_stop_return_without_evaluations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stop_return=1 is compared with evaluations, but eval_every=0"):
        train(tmp_path, stop_return=1.0, eval_every=0)


def test_there_are_four_methods() -> None:
    assert METHODS == ("on_chunk", "on_update", "on_evaluation", "on_checkpoint")
