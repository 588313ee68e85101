"""DQN, DDPG and a subclass of the user's own learn through the metarl interface."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.compat.metarl import DQN, LocalRunner, SnapshotConfig, set_seed

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "coming_from_metarl.py"
# Random policies return 24 (CartPole-v1) and -1,208 (Pendulum-v1), over 100 episodes of at most 200 steps.
ENOUGH = {"dqn": 75.0, "own": 75.0, "ddpg": -400.0}


def made(kind: str) -> tuple[Any, Any]:
    """Algorithm and environment of the example."""
    spec = importlib.util.spec_from_file_location("coming_from_metarl", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    set_seed(1)
    if kind == "ddpg":
        return module.ddpg(10)
    return module.dqn(DQN if kind == "dqn" else module.OwnDQN, 6, 10)


def last_returns(kind: str, path: Path, learns: bool) -> float:
    """The mean return of the evaluations after the last three of six epochs."""
    algo, env = made(kind)
    if not learns and kind == "own":
        algo.optimizer.param_groups[0]["lr"] = 0.0
    elif not learns:
        algo._training.learner.set_rate(0.0)
    runner = LocalRunner(SnapshotConfig(str(path), "last", 1))
    runner.setup(algo, env)
    runner.train(n_epochs=6, batch_size=100)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return float(np.mean([row["Evaluation/AverageReturn"] for row in rows[-3:]]))


@pytest.mark.parametrize("kind", ENOUGH)
def test_the_algorithms_of_the_example_learn(kind: str, tmp_path: Path) -> None:
    assert last_returns(kind, tmp_path, learns=True) > ENOUGH[kind]


@pytest.mark.parametrize("kind", ENOUGH)
def test_without_a_learning_rate_they_do_not(kind: str, tmp_path: Path) -> None:
    assert last_returns(kind, tmp_path, learns=False) < ENOUGH[kind]
