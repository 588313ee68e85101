"""Tasks that need a memory are learned with recurrent networks and not without; minutes each (make slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from memory_tasks import (
    CUE,
    CUE_COLLECTORS,
    CUE_MEMORY,
    CUE_ROLLOUTS,
    CUE_ROLLOUTS_MEMORY,
    PENDULUM,
    PENDULUM_MEMORY,
)
from offbeat.policies.recurrent import RecurrentPolicy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


def evaluation(tmp_path: Path, algorithm: str, task: str, **settings: Any) -> Any:
    """Of the final policy, over 100 episodes."""
    run = offbeat.train(
        algorithm,
        f"memory_tasks:{task}",
        out=str(tmp_path),
        quiet=True,
        threads=1,
        eval_every=0,
        eval_episodes=100,
        **settings,
    )
    assert run.evaluation is not None
    return run.evaluation


def success_rate(tmp_path: Path, algorithm: str, **settings: Any) -> float:
    rate = evaluation(tmp_path, algorithm, "cue", **settings).success_rate
    assert rate is not None
    return float(rate)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_cue_is_remembered_for_twenty_steps(backend: str, tmp_path: Path) -> None:
    assert success_rate(tmp_path, "sac", backend=backend, **CUE, **CUE_MEMORY) >= 0.95


# Without a memory, or with a state that begins anew in every step that is learned from, a guess is right half the time.
@pytest.mark.parametrize(
    "settings",
    [
        {"network": "mlp"},
        {**CUE_MEMORY, "sequence_length": 1, "start_state": "zero", "batch_size": 512},
    ],
)
def test_a_cue_is_not_remembered_without_a_memory(settings: dict[str, Any], tmp_path: Path) -> None:
    assert 0.3 <= success_rate(tmp_path, "sac", **CUE, **settings) <= 0.7


# APPO's collector processes act with weights that are two turns old; V-trace corrects for it.
@pytest.mark.parametrize(("algorithm", "more"), [("ppo", {}), ("appo", {}), ("appo", CUE_COLLECTORS)])
def test_a_cue_is_remembered_with_rollouts(algorithm: str, more: dict[str, Any], tmp_path: Path) -> None:
    assert success_rate(tmp_path, algorithm, **{**CUE_ROLLOUTS, **CUE_ROLLOUTS_MEMORY, **more}) >= 0.95


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_a_cue_is_not_remembered_without_a_memory_with_rollouts(algorithm: str, tmp_path: Path) -> None:
    assert 0.3 <= success_rate(tmp_path, algorithm, **{**CUE_ROLLOUTS, "total_steps": 100_000}) <= 0.7


def test_a_state_that_is_reset_each_step_remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act = RecurrentPolicy.act

    def forgetful(self: Any, obs: Any, carry: Any, rng: Any, step: int = 0, mask: Any = None) -> Any:
        action, after, extras = act(self, obs, carry, rng, step, mask)
        return action, np.zeros_like(after), extras

    monkeypatch.setattr(RecurrentPolicy, "act", forgetful)
    assert success_rate(tmp_path, "ppo", **{**CUE_ROLLOUTS, **CUE_ROLLOUTS_MEMORY, "total_steps": 100_000}) <= 0.7


def test_pendulum_is_balanced_without_seeing_its_velocity(tmp_path: Path) -> None:
    assert evaluation(tmp_path, "sac", "pendulum", **PENDULUM, **PENDULUM_MEMORY).mean_return >= -300


# Without a memory; and with one that begins anew in every step that is learned from.
@pytest.mark.parametrize(
    "settings",
    [{}, {**PENDULUM_MEMORY, "sequence_length": 1, "burn_in": 0, "start_state": "zero", "batch_size": 320}],
)
def test_pendulum_is_not_balanced_without_a_memory(settings: dict[str, Any], tmp_path: Path) -> None:
    assert evaluation(tmp_path, "sac", "pendulum", **PENDULUM, **settings).mean_return < -700
