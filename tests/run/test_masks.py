"""Runs under masks: nobody ever takes a forbidden action, in training, evaluation or later; rows hold the masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from guarded import BRANCHES, CHOICES, Guarded
from offbeat.masks import permits
from offbeat.run.api import evaluate_run
from offbeat.run.callbacks import ChunkEvent
from offbeat.run.checkpoint import digest

SHARED: dict[str, Any] = {
    **{"hidden": (8,), "num_envs": 2, "total_steps": 120, "threads": 1, "quiet": True, "logger": ()},
    **{"eval_every": 60, "eval_episodes": 2, "log_every": 60, "checkpoint_every": 0, "max_crashes": 1},
}
REPLAY = {"batch_size": 8, "random_steps": 40, "warmup_steps": 30, "capacity": 500, "updates_per_step": 0.5}
ROLLOUTS = {"rollout_steps": 15, "epochs": 2, "minibatches": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {**REPLAY, "n_step": 2, "exploration_final": 0.5, "exploration_steps": 60},
    "sac": REPLAY,
    "ppo": {**ROLLOUTS, "entropy_coefficient": 0.01},
    "appo": ROLLOUTS,
}


class Watching:
    def __init__(self) -> None:
        self.chunks: list[dict[str, np.ndarray]] = []

    def on_chunk(self, event: ChunkEvent) -> None:
        self.chunks.append({name: np.array(column) for name, column in event.chunk.columns.items()})

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([chunk[name] for chunk in self.chunks])


def train(algorithm: str, out: Path, callbacks: Any = None, **settings: Any) -> Any:
    settings = {"mask_key": "allowed", **SHARED, **SETTINGS[algorithm], **settings}
    settings = settings if settings.get("collectors") else {**settings, "max_crashes": 5}
    return offbeat.train(algorithm, "guarded:make", out=str(out), callbacks=callbacks, **settings)


def check_rows(watching: Watching, counts: tuple[int, ...]) -> None:
    mask, next_mask = watching.column("mask"), watching.column("next_mask")
    assert mask.dtype == next_mask.dtype == np.bool_
    assert permits(mask, watching.column("action"), counts)
    assert not mask.all()
    assert next_mask.any(1).all()
    # Within an episode, a row's next mask is the mask of the row that follows it.
    for env in np.unique(watching.column("env")):
        mine = watching.column("env") == env
        goes_on = watching.column("episode")[mine][1:] == watching.column("episode")[mine][:-1]
        np.testing.assert_array_equal(mask[mine][1:][goes_on], next_mask[mine][:-1][goes_on])


@pytest.mark.parametrize("collectors", [0, 1])
@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_no_forbidden_action_is_taken(algorithm: str, collectors: int, tmp_path: Path) -> None:
    watching = Watching()
    run = train(algorithm, tmp_path, [watching], collectors=collectors)
    assert run.status == "finished"
    assert json.loads((run.path / "summary.json").read_text())["restarts"] == 0
    check_rows(watching, (CHOICES,))
    assert np.isfinite(run.evaluation.returns).all()
    policy, env = run.policy(), Guarded()
    for deterministic in (True, False):
        obs, info = env.reset(seed=5)
        for _ in range(4):
            obs, _, _, _, info = env.step(policy.act(obs, deterministic, mask=info["allowed"]))


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
@pytest.mark.parametrize("where", ["info", "observation"])
def test_branches_are_masked_one_after_the_other(algorithm: str, where: str, tmp_path: Path) -> None:
    watching, kwargs = Watching(), {"several": True, "mask": where}
    run = train(algorithm, tmp_path, [watching], env_kwargs=kwargs)
    check_rows(watching, BRANCHES)
    policy, env = run.policy(), Guarded(**kwargs)
    obs, info = env.reset(seed=5)
    for _ in range(4):
        obs, _, _, _, info = env.step(policy.act(obs, **({"mask": info["allowed"]} if where == "info" else {})))


@pytest.mark.parametrize("ends", ["gone", "truncated"])
@pytest.mark.parametrize("where", ["info", "observation"])
def test_mask_key_is_a_key_of_info_or_of_the_observation(where: str, ends: str, tmp_path: Path) -> None:
    watching = Watching()
    kwargs = {"mask": where, "ends": ends}
    run = train("dqn", tmp_path, [watching], mask_key="allowed", env_kwargs=kwargs, total_steps=60)
    check_rows(watching, (CHOICES,))
    assert run.policy().spec.observation_size == 3
    assert len(evaluate_run(run.path, episodes=3).returns) == 3


@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_a_resumed_run_equals_one_that_was_never_interrupted(algorithm: str, tmp_path: Path) -> None:
    whole = train(algorithm, tmp_path)
    part = train(algorithm, tmp_path, total_steps=70, eval_every=0)
    resumed = offbeat.resume(part.path, total_steps=120, quiet=True)
    assert resumed.status == "finished"
    assert digest(part.path) == digest(whole.path)
