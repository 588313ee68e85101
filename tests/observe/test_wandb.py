"""W&B in offline mode: its file is read back, without a network."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import offbeat
from offbeat.errors import OffbeatError, UsageError
from offbeat.observe.loggers import check_loggers
from offbeat.observe.wandb import WeightsAndBiases
from offbeat.run.checkpoint import digest
from patience import wait_until

pytestmark = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra: wandb")

SETTINGS: dict[str, Any] = {
    "hidden": (8,),
    "batch_size": 8,
    "random_steps": 20,
    "warmup_steps": 20,
    "total_steps": 60,
    "max_episode_steps": 10,
    "eval_every": 30,
    "eval_episodes": 1,
    "checkpoint_every": 30,
    "log_every": 30,
    "capacity": 500,
    "threads": 1,
    "quiet": True,
    "logger": ("wandb",),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)


def records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file: after 7 bytes a LevelDB log, blocks of 32 KiB with checksum, length, kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        if 32_768 - position % 32_768 < 7:  # the rest of the block is too short for a header
            position += 32_768 - position % 32_768
        header = content[position : position + 7]
        length, part = int.from_bytes(header[4:6], "little"), header[6:]
        if position + 7 + length > len(content):
            return  # it is still being written
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (b"\1", b"\4"):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def written(run: Path) -> list[Any]:
    """All records, once each file is complete: the process that writes them may lag behind."""
    found: list[Any] = []

    def whole() -> bool:
        files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
        found[:] = [record for file in files for record in records(file)]
        return bool(files) and sum(kind(record) == "exit" for record in found) == len(files)

    wait_until(whole, f"W&B has not finished its files in {run}")
    return found


def kind(record: Any) -> str:
    return record.WhichOneof("record_type")


def items(entries: Any) -> dict[str, Any]:
    return {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in entries}


def history(run: Path) -> list[dict[str, Any]]:
    return [items(each.history.item) for each in written(run) if kind(each) == "history"]


def test_metrics_evaluations_config_and_summary_can_be_read_back(tmp_path: Path) -> None:
    run = offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), name="one", gamma=0.9, **SETTINGS)
    assert run.evaluation is not None
    points = history(run.path)
    assert [line["step"] for line in points if "train/critic_loss" in line] == [30, 60]
    returns = [(line["step"], line["eval/return"]) for line in points if "eval/return" in line]
    assert returns == [(each.step, each.mean_return) for each in run.history]
    everything = written(run.path)
    (begun,) = (each.run for each in everything if kind(each) == "run")
    assert (begun.display_name, begun.project) == ("one", "offbeat")
    assert begun.run_id == (run.path / "wandb" / "id").read_text().strip()
    axes = {each.metric.name: each.metric.step_metric for each in everything if each.HasField("metric")}
    assert axes["train/critic_loss"] == axes["eval/return"] == "step"
    config = {key: value for each in everything for key, value in items(each.config.update).items()}
    assert (config["algorithm"], config["gamma"], config["env"]) == ("sac", 0.9, "Pendulum-v1")
    summary = {key: value for each in everything for key, value in items(each.summary.update).items()}
    assert (summary["status"], summary["env_steps"]) == ("finished", 60)
    assert summary["evaluation/mean_return"] == run.evaluation.mean_return
    assert [each.exit.exit_code for each in everything if kind(each) == "exit"] == [0]


def test_a_resumed_run_continues_the_same_wandb_run_and_learns_the_same(tmp_path: Path) -> None:
    run = offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), **SETTINGS)
    offbeat.resume(run.path, total_steps=120)
    identities = {each.run.run_id for each in written(run.path) if kind(each) == "run"}
    assert len(identities) == 1
    assert [line["step"] for line in history(run.path) if "train/critic_loss" in line] == [30, 60, 90, 120]
    without = {**SETTINGS, "logger": (), "total_steps": 120}
    assert digest(run.path) == digest(offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), **without).path)


def test_a_failed_run_is_a_failed_wandb_run(tmp_path: Path) -> None:
    class Failing:
        def on_evaluation(self, event: Any) -> None:
            raise RuntimeError("oh")

    with pytest.raises(OffbeatError, match="oh"):
        offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), name="run", callbacks=[Failing()], **SETTINGS)
    exits = [each for each in written(tmp_path / "run") if kind(each) == "exit"]
    assert [each.exit.exit_code for each in exits] == [1]


class Spy(types.ModuleType):
    """Replaces the library: records how a run was started and what was called."""

    Settings = dict
    errors = SimpleNamespace(Error=RuntimeError)

    def __init__(self, run: Any = None) -> None:
        super().__init__("wandb")
        self.run = run
        self.begun: list[dict[str, Any]] = []
        self.raising: Exception | None = None

    def init(self, **options: Any) -> Any:
        if self.raising is not None:
            raise self.raising
        self.begun.append(options)
        return wandb_run(options["id"] or "fresh")


def wandb_run(identity: str) -> Any:
    run = SimpleNamespace(id=identity, logged=[], ended=[], axes={}, summary={}, settings={})
    run.config = SimpleNamespace(update=lambda values, allow_val_change: run.settings.update(values))
    run.log = run.logged.append
    run.define_metric = lambda name, step_metric: run.axes.update({name: step_metric})
    run.finish = lambda exit_code: run.ended.extend([exit_code])
    return run


def test_wandbs_variables_name_project_and_run_and_keep_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy()
    monkeypatch.setitem(sys.modules, "wandb", spy)
    WeightsAndBiases(tmp_path, {}, quiet=True)
    for name, value in (("PROJECT", "mine"), ("NAME", "named"), ("CONSOLE", "wrap")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    WeightsAndBiases(tmp_path, {})
    first, second = spy.begun
    assert (first["project"], first["name"], first["id"], first["resume"]) == ("offbeat", tmp_path.name, None, None)
    assert first["settings"] == {"console": "off", "silent": True}
    assert (second["project"], second["name"], second["id"], second["resume"]) == ("mine", "named", "fresh", "allow")
    assert second["settings"] == {}
    assert first["dir"] == second["dir"] == str(tmp_path)


def test_a_wandb_run_that_is_open_already_is_used_and_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = wandb_run("theirs")
    monkeypatch.setitem(sys.modules, "wandb", Spy(run))
    logger = WeightsAndBiases(tmp_path, {"gamma": 0.9})
    logger.write(10, {"loss": 1.0})
    logger.summarise({"status": "failed", "evaluation": {"mean_return": 2.0}})
    logger.close()
    assert run.logged == [{"step": 10, "loss": 1.0}]
    assert (run.axes, run.settings) == ({"loss": "step"}, {"gamma": 0.9})
    assert run.summary == {"status": "failed", "evaluation/mean_return": 2.0}
    assert run.ended == []


def test_a_wandb_run_that_does_not_start_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy()
    spy.raising = RuntimeError("no key")
    monkeypatch.setitem(sys.modules, "wandb", spy)
    monkeypatch.setattr("offbeat.run.build.check_loggers", lambda names: None)
    with pytest.raises(OffbeatError, match=r"no key.*wandb login.*WANDB_MODE=offline"):
        offbeat.train("sac", "Pendulum-v1", out=str(tmp_path), name="run", **SETTINGS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("origin", ["absent", "a directory of that name"])
def test_without_the_library_the_remedy_is_named_before_anything_is_created(
    origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = None if origin == "absent" else SimpleNamespace(origin=None)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: found if name == "wandb" else find(name, *rest))
    with pytest.raises(UsageError, match=r"pip install 'offbeat\[wandb\]'"):
        offbeat.train("sac", "Pendulum-v1", out=str(tmp_path / "out"), **SETTINGS)
    assert not (tmp_path / "out").exists()
    check_loggers(["tensorboard"])
