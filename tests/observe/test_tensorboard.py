"""TensorBoard: the events can be read back with TensorBoard's own reader."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from offbeat.observe.groups import grouped
from offbeat.observe.tensorboard import TensorBoard


def points(directory: Path, name: str) -> list[tuple[int, float]]:
    reader = EventAccumulator(str(directory))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(name)]


def test_every_number_has_a_group() -> None:
    numbers = {"return_100": 1.0, "success_100": 0.5, "critic_loss": 2.0, "steps_per_second": 3.0, "mine/thing": 4.0}
    assert list(grouped(numbers)) == [
        *("rollout/return_100", "rollout/success_100", "train/critic_loss", "time/steps_per_second", "mine/thing"),
    ]
    assert grouped({"return": 1.0, "length": 2.0}, "eval") == {"eval/return": 1.0, "eval/length": 2.0}


def test_numbers_can_be_read_back_by_name_and_step(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.write(100, {"return_100": -1.5, "loss/critic": 0.25})
    board.write(200, {"return_100": 2.0})
    board.close()
    assert points(tmp_path, "return_100") == [(100, -1.5), (200, 2.0)]
    assert points(tmp_path, "loss/critic") == [(100, 0.25)]


def test_settings_are_hyper_parameters_of_the_same_run(tmp_path: Path) -> None:
    settings = {"gamma": 0.9, "hidden": [64, 64], "layer_norm": True, "env": "A-v0", "actor": None, "kwargs": {"g": 9}}
    TensorBoard(tmp_path, settings).close()
    TensorBoard(tmp_path, settings, purge_step=10).close()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    found = {tag: HParamsPluginData.FromString(data) for tag, data in reader.PluginTagToContent("hparams").items()}
    begun = found["_hparams_/session_start_info"].session_start_info.hparams
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in begun.items()}
    assert values == {"gamma": 0.9, "hidden": "64 64", "layer_norm": True, "env": "A-v0", "kwargs": "g=9"}
    shown = [metric.name.tag for metric in found["_hparams_/experiment"].experiment.metric_infos]
    assert shown == ["eval/return", "rollout/return_100"]


def test_a_resumed_run_hides_the_points_that_it_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file is named by its second and then by a counter without leading zeros, which sorts 9 after 10.
    monkeypatch.setattr(time, "time", itertools.count(1_700_000_000).__next__)
    first = TensorBoard(tmp_path)
    for step in (100, 200, 300):
        first.write(step, {"return_100": 1.0})
    first.close()
    resumed = TensorBoard(tmp_path, purge_step=200)
    resumed.write(200, {"return_100": 7.0})
    resumed.close()
    assert points(tmp_path, "return_100") == [(100, 1.0), (200, 7.0)]
