"""TensorBoard: the events can be read back with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from offbeat.observe.tensorboard import TensorBoard


def points(directory: Path, name: str) -> list[tuple[int, float]]:
    reader = EventAccumulator(str(directory))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(name)]


def test_numbers_can_be_read_back_by_name_and_step(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.write(100, {"return_100": -1.5, "loss/critic": 0.25})
    board.write(200, {"return_100": 2.0})
    board.close()
    assert points(tmp_path, "return_100") == [(100, -1.5), (200, 2.0)]
    assert points(tmp_path, "loss/critic") == [(100, 0.25)]


def test_a_resumed_run_hides_the_points_that_it_repeats(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    for step in (100, 200, 300):
        first.write(step, {"return_100": 1.0})
    first.close()
    resumed = TensorBoard(tmp_path, purge_step=200)
    resumed.write(200, {"return_100": 7.0})
    resumed.close()
    assert points(tmp_path, "return_100") == [(100, 1.0), (200, 7.0)]
