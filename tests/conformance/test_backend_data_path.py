"""From environment to learner: every row that an update is given, on each backend, is one of the environments' logs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import offbeat
from counting import Entry
from short_runs import SETTINGS
from witness import ALGORITHM, Witnessed, signature

GAMMA, STEPS = 0.9, 1_500


def logs(directory: Path) -> list[list[Entry]]:
    files = sorted(directory.glob("env-*.jsonl"))
    return [[Entry(*json.loads(line)) for line in text.splitlines()] for file in files if (text := file.read_text())]


def expected(log: list[Entry], n_step: int) -> np.ndarray:
    """The signatures of all rows of an environment, by walking its log."""
    rows = []
    for position, first in enumerate(log):
        reward, discount, steps = 0.0, 1.0, 0
        for entry in log[position : position + n_step]:
            if entry.episode != first.episode:
                break
            reward, discount, steps = reward + discount * entry.reward, discount * GAMMA, steps + 1
            if entry.terminated:
                discount = 0.0
        action = (first.action[0] / 2, first.action[1] / 5 - 1)  # of [-2, 2] and [0, 10]
        rows.append((first.episode, first.step, first.step + steps, *action, reward, discount))
    episode, step, after, *action, reward, discount = np.array(rows).T
    columns = {"obs": (episode, step), "next_obs": (episode, after), "action": action}
    vectors = {name: np.stack(parts, 1) for name, parts in columns.items()}
    return signature(SimpleNamespace(**vectors, reward=reward, discount=discount))


def in_a_log(found: np.ndarray, known: np.ndarray) -> np.ndarray:
    after = np.searchsorted(known, found).clip(1, len(known) - 1)
    nearest = np.minimum(abs(known[after] - found), abs(known[after - 1] - found))
    return nearest < 1e-4


class Kept(offbeat.Callback):
    """Keeps the replay of a run."""

    def on_update(self, event: Any) -> None:
        self.replay = event.agent.experience


@pytest.mark.parametrize(("backend", "collectors", "n_step"), [("torch", 0, 3), ("jax", 0, 3), ("jax", 2, 1)], ids=str)
def test_every_row_of_an_update_is_in_an_environments_log(
    backend: str, collectors: int, n_step: int, tmp_path: Path
) -> None:
    kept = Kept()
    settings = {**SETTINGS, "num_envs": 4, "total_steps": STEPS, "capacity": 400, "eval_every": 0, "n_step": n_step}
    offbeat.train(
        ALGORITHM,
        "counting:make",
        env_kwargs={"log_dir": str(tmp_path)},
        out=str(tmp_path / "run"),
        backend=backend,
        precision="float64",
        gamma=GAMMA,
        replay=Witnessed,
        collectors=collectors,
        callbacks=[kept],
        **settings,
    )
    found, environments = np.concatenate(kept.replay.seen), logs(tmp_path)
    whole, *shorter = (
        np.sort(np.concatenate([expected(log, steps) for log in environments])) for steps in range(n_step, 0, -1)
    )
    known = np.sort(np.concatenate([whole, *shorter]))  # the newest rows have fewer steps after them
    assert len(whole) >= STEPS
    assert len(found) > 20_000
    assert in_a_log(found, known).all()
    assert in_a_log(found, whole).mean() > 0.9
    assert np.unique(found.round(3)).size > STEPS / 2  # not the same rows again and again
    assert not in_a_log(found + 0.05, known).all()  # a row with an error would be seen
