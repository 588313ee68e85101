"""Training as one value: rows are counted once, and any pace brings a run to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.run.training import Training
from offbeat.settings import make_config
from offbeat.types import Batches, Chunk
from specs import vector_spec

SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "warmup_steps": 20, "random_steps": 20, "capacity": 500}


def rows(count: int, sequence: int, **key: int) -> Chunk:
    rng, spec = np.random.default_rng(sequence), vector_spec(3, 1)
    columns: dict[str, Any] = {name: rng.standard_normal((count, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    columns |= {"action": np.zeros((count, spec.action_size), np.float32), "reward": np.ones(count, np.float32)}
    columns |= {name: np.zeros(count, bool) for name in ("terminated", "truncated")}
    columns |= {name: np.zeros(count, np.int32) for name in ("version", "env", "episode")}
    return Chunk({**columns, "step": np.arange(sequence, sequence + count)}, sequence=sequence, **key)


def test_a_chunk_that_is_sent_again_is_not_counted_twice() -> None:
    training = Training(make_config("sac", {**SMALL, "normalise_observations": True}), vector_spec(3, 1))
    assert training.take(rows(30, 0))
    assert training.take(rows(10, 30))
    counted = training.learner.arrays()
    for again in (rows(30, 0), rows(10, 30), rows(5, 35)):
        assert not training.take(again)
    assert training.steps == 40
    assert float(training.learner.observations.count) == 40
    for name, array in training.learner.arrays().items():
        np.testing.assert_array_equal(array, counted[name], err_msg=name)
    assert training.take(rows(10, 0, worker=1))  # another worker counts its own rows
    assert training.steps == 50


@pytest.mark.parametrize("pace", ["held", "ceiling", "free"])
def test_no_update_is_due_while_there_is_nothing_to_learn_from(pace: str) -> None:
    training = Training(make_config("sac", {**SMALL, "pace": pace, "collectors": 1}), vector_spec(3, 1))
    store = training.experience.plan(0, 1, 1).open()
    assert training.take(rows(50, 0))
    assert training.due() == 0
    training.experience.attach(store)
    assert training.due() == 0
    store.write(rows(50, 0))
    assert training.due() > 0


def test_a_chunk_that_was_counted_before_a_checkpoint_is_not_counted_after_it() -> None:
    first, second = (Training(make_config("sac", SMALL), vector_spec(3, 1)) for _ in range(2))
    first.take(rows(30, 0))
    second.restore(first.snapshot())
    assert not second.take(rows(30, 0))
    assert second.take(rows(10, 30))
    assert second.steps == 40


@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_every_row_of_a_loop_of_ones_own_counts(algorithm: str) -> None:
    """Rows that the loop itself adds have no key: equal ones are new."""
    agent = offbeat.Agent(algorithm, vector_spec(3, 1), hidden=(8,))
    extras = {"log_prob": np.zeros(1, np.float32)} if algorithm == "ppo" else {}
    for _ in range(3):
        agent.add(Chunk({**rows(1, 0).columns, **extras}))
    assert agent.steps == len(agent.experience) == 3


def test_updates_with_batches_of_ones_own_are_those_of_the_same_batches_from_replay() -> None:
    first, second = (offbeat.Agent("sac", vector_spec(3, 1), **SMALL) for _ in range(2))
    for agent in (first, second):
        agent.add(rows(30, 0))
    first.training.learn(3)
    batches = second.experience.draw(second.training.streams.sampling, 3)
    assert isinstance(batches, Batches)
    second.training.learn_from(batches)
    for name, array in second.learner.arrays().items():
        np.testing.assert_array_equal(array, first.learner.arrays()[name], err_msg=name)


@pytest.mark.parametrize("mode", ["held", "ceiling", "free"])
def test_a_run_with_collectors_ends_at_any_pace(mode: str, tmp_path: Path) -> None:
    run = offbeat.train(
        *("sac", "Pendulum-v1"),
        **{**SMALL, "total_steps": 120, "num_envs": 2, "collectors": 1, "pace": mode, "updates_per_step": 0.5},
        **{"eval_every": 0, "eval_episodes": 1, "threads": 1, "quiet": True, "out": str(tmp_path), "seed": 1},
    )
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"]) == ("finished", 120)
    if mode != "free":  # how many updates a free learner makes is a matter of speed
        assert summary["updates"] == 50
