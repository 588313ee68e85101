"""Learning from nothing to a known result; minutes each (make slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import offbeat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]


def _final_return(env: str, tmp_path: Path, algorithm: str = "sac", **settings: Any) -> float:
    """Mean return of the final policy over 20 evaluation episodes."""
    quiet = {"out": str(tmp_path), "quiet": True, "threads": 1, "eval_every": 0, "eval_episodes": 20}
    run = offbeat.train(algorithm, env, **quiet, **settings)
    assert run.evaluation is not None
    return run.evaluation.mean_return


# A random policy's mean is about -1,200.
@pytest.mark.parametrize("seed", range(5))
def test_pendulum_is_swung_up_in_ten_thousand_steps(seed: int, tmp_path: Path) -> None:
    assert _final_return("Pendulum-v1", tmp_path, total_steps=10_000, seed=seed) >= -200


# As in float32, above. float16 has no instructions on most processors, so its networks are small.
@pytest.mark.parametrize(
    ("precision", "seed", "own"),
    [("bfloat16", 0, {}), ("bfloat16", 1, {}), ("float16", 0, {"hidden": (32, 32), "batch_size": 64})],
)
def test_pendulum_is_swung_up_in_mixed_precision(
    precision: str, seed: int, own: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"total_steps": 10_000, "seed": seed, "precision": precision, **own}
    assert _final_return("Pendulum-v1", tmp_path, **settings) >= -200
    broken = {**settings, "total_steps": 3_000, "critic_learning_rate": 0.0}
    assert _final_return("Pendulum-v1", tmp_path, **broken) < -700


# A random policy keeps the pole up for about 6 steps.
def test_inverted_pendulum_stays_up_for_a_thousand_steps(tmp_path: Path) -> None:
    assert _final_return("InvertedPendulum-v5", tmp_path, total_steps=20_000) == 1_000


# Random policies: CartPole about 22, Acrobot about -500, Reacher about -43, HalfCheetah about -280.
@pytest.mark.parametrize(
    ("algorithm", "env", "steps", "least"),
    [
        ("dqn", "CartPole-v1", 50_000, 475),
        ("dqn", "Acrobot-v1", 100_000, -100),
        ("sac", "CartPole-v1", 50_000, 475),
        ("ppo", "CartPole-v1", 100_000, 475),
        ("appo", "CartPole-v1", 100_000, 475),
        ("ppo", "Pendulum-v1", 200_000, -250),
        ("td3", "Pendulum-v1", 20_000, -200),
        ("ddpg", "Pendulum-v1", 20_000, -200),
        ("redq", "Pendulum-v1", 5_000, -200),
        ("td3", "InvertedPendulum-v5", 50_000, 1_000),
        ("sac", "Reacher-v5", 30_000, -5),
        ("sac", "HalfCheetah-v5", 30_000, 1_000),
        ("td3", "HalfCheetah-v5", 50_000, 1_000),
    ],
)
def test_the_preset_learns(algorithm: str, env: str, steps: int, least: float, tmp_path: Path) -> None:
    assert _final_return(env, tmp_path, algorithm, total_steps=steps) >= least


OWN = "own_parts.expectile:ALGORITHM"
OWN_PARTS = {
    "replay": "own_parts.replay:Prioritised",
    "exploration": "own_parts.exploration:PinkNoise",
    "preprocessor": "own_parts.preprocessor:LargestScale",
}


@pytest.mark.parametrize("parts", [{}, OWN_PARTS], ids=["alone", "with own parts"])
def test_an_algorithm_of_a_user_swings_up(parts: dict[str, str], tmp_path: Path) -> None:
    small = {"total_steps": 10_000, "hidden": (64, 64), "batch_size": 128}
    assert _final_return("Pendulum-v1", tmp_path, OWN, **small, **parts) >= -250
    assert _final_return("Pendulum-v1", tmp_path, OWN, **small, **parts, critic_learning_rate=0.0) < -700


def test_a_critic_that_learns_nothing_does_not_swing_up(tmp_path: Path) -> None:
    """The learning tests can fail: with the critics' rate at zero the same run stays near a random policy's return."""
    assert _final_return("Pendulum-v1", tmp_path, total_steps=5_000, critic_learning_rate=0.0) < -700
    broken = {"total_steps": 20_000, "critic_learning_rate": 0.0}
    assert _final_return("Pendulum-v1", tmp_path, "td3", **broken) < -700


def test_a_network_that_learns_nothing_does_not_balance(tmp_path: Path) -> None:
    for algorithm in ("dqn", "ppo", "appo"):
        assert _final_return("CartPole-v1", tmp_path, algorithm, total_steps=20_000, learning_rate=0.0) < 200
