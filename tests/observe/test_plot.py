"""Learning curves: plotted from a run's logs only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from offbeat.errors import OffbeatError
from offbeat.observe.jsonl import Jsonl
from offbeat.observe.plot import EVALUATION, RANDOM, TRAINING, learning_curve


def write_run(directory: Path, evaluations: int = 5, metrics: int = 10) -> Path:
    generator = np.random.default_rng(0)
    with Jsonl(directory / "evaluations.jsonl") as log:
        for index in range(1, evaluations + 1):
            returns = -1200 / index + 60 * generator.standard_normal(10)
            log.write({"step": 2_000 * index, "version": index, "returns": returns, "lengths": [200] * 10})
    with Jsonl(directory / "metrics.jsonl") as log:
        for index in range(1, metrics + 1):
            log.write({"step": 1_000 * index, "return_100": None if index == 1 else -1300 + 90.0 * index})
    (directory / "config.yaml").write_text("algorithm: sac\nenv: Pendulum-v1\n")
    return directory


def pixels(path: Path, colour: str) -> int:
    """The number of pixels with exactly this colour."""
    image = np.asarray(Image.open(path).convert("RGB"))
    return int((image == [int(colour[at : at + 2], 16) for at in (1, 3, 5)]).all(axis=-1).sum())


def test_evaluations_and_training_returns_are_drawn(tmp_path: Path) -> None:
    path = learning_curve(write_run(tmp_path))
    assert path == tmp_path / "learning_curve.png"
    assert pixels(path, EVALUATION) > 500
    assert pixels(path, TRAINING) > 500
    assert pixels(path, RANDOM) == 0


def test_a_random_policy_is_drawn_where_its_return_is_given(tmp_path: Path) -> None:
    path = learning_curve(write_run(tmp_path), tmp_path / "pictures" / "curve.png", random_return=-1200.0)
    assert path == tmp_path / "pictures" / "curve.png"
    assert pixels(path, RANDOM) > 500


@pytest.mark.parametrize(("evaluations", "metrics"), [(1, 0), (0, 4)])
def test_a_run_that_has_only_evaluations_or_only_training_is_drawn(
    tmp_path: Path, evaluations: int, metrics: int
) -> None:
    path = learning_curve(write_run(tmp_path, evaluations, metrics))
    assert (pixels(path, EVALUATION) > 0) == (evaluations > 0)
    assert (pixels(path, TRAINING) > 0) == (metrics > 0)


def test_a_run_without_any_return_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match="no evaluation and no finished training episode"):
        learning_curve(write_run(tmp_path, evaluations=0, metrics=1))
