"""Tasks that need a memory are learned with recurrent networks and not without; minutes each (make slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import offbeat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

SEQUENCES = {"network": "gru", "recurrent_size": 32, "sequence_length": 42, "batch_size": 32}
CUE: dict[str, Any] = {"hidden": (32,), "updates_per_step": 0.2, "total_steps": 20_000}


def success_rate(tmp_path: Path, algorithm: str, **settings: Any) -> float:
    """Of the final policy, over 100 evaluation episodes."""
    run = offbeat.train(
        algorithm,
        "memory_tasks:cue",
        out=str(tmp_path),
        quiet=True,
        threads=1,
        eval_every=0,
        eval_episodes=100,
        **settings,
    )
    assert run.evaluation is not None
    assert run.evaluation.success_rate is not None
    return run.evaluation.success_rate


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_cue_is_remembered_for_twenty_steps(backend: str, tmp_path: Path) -> None:
    assert success_rate(tmp_path, "sac", backend=backend, **CUE, **SEQUENCES) >= 0.95


# Without a memory, or with a state that begins anew in every step that is learned from, a guess is right half the time.
@pytest.mark.parametrize(
    "settings",
    [
        {"network": "mlp"},
        {**SEQUENCES, "sequence_length": 1, "start_state": "zero", "batch_size": 512},
    ],
)
def test_a_cue_is_not_remembered_without_a_memory(settings: dict[str, Any], tmp_path: Path) -> None:
    assert 0.3 <= success_rate(tmp_path, "sac", **CUE, **settings) <= 0.7
