"""Exploration: the effect of noise on actions, by environment, episode and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offbeat.errors import UsageError
from offbeat.policies import make_policy
from offbeat.policies.exploration import RandomChoice, scales
from offbeat.types import Array, EnvSpec
from specs import choice_spec, vector_spec

GAUSSIAN = {"kind": "gaussian", "scale": 0.1, "spread": 1.0}
DRIFT = {"kind": "ornstein_uhlenbeck", "scale": 0.2, "spread": 1.0, "pull": 0.15, "time_step": 0.01}
EPSILON = {"kind": "epsilon_greedy", "initial": 1.0, "final": 0.1, "steps": 100, "decay": "linear"}


def _policy(exploration: dict[str, Any], spec: EnvSpec, **envs: int) -> Any:
    """A policy whose action is always 0 (its weights are 0), with exploration."""
    kind = "deterministic" if spec.choices is None else "greedy"
    description = {"kind": kind, "activation": "relu", "dueling": False, "exploration": exploration}
    policy = make_policy(description, spec=spec, **envs)  # type: ignore[arg-type]
    outputs = spec.choices or spec.action_size
    policy.load({"actor/0/weight": np.zeros((5, outputs), np.float32), "actor/0/bias": np.zeros(outputs, np.float32)})
    return policy


def _actions(policy: Any, envs: int, steps: int = 1, step: int = 0) -> Array:
    """(steps, envs, A)"""
    rng, carry, obs = np.random.default_rng(0), policy.initial_carry(envs), np.zeros((envs, 5), np.float32)
    actions = []
    for _ in range(steps):
        action, carry, _ = policy.act(obs, carry, rng, step)
        actions.append(action)
    return np.stack(actions)


@pytest.mark.parametrize("exploration", [GAUSSIAN, DRIFT])
def test_noise_has_its_scale_and_stays_in_bounds(exploration: dict[str, Any]) -> None:
    spec = vector_spec()
    small = _actions(_policy(exploration, spec), 4_000)[0]
    expected = 0.1 if exploration is GAUSSIAN else 0.2 * np.sqrt(0.01)
    assert small.dtype == np.float32
    assert small.std() == pytest.approx(expected, rel=0.05)
    assert np.abs(_actions(_policy({**exploration, "scale": 50.0}, spec), 100)).max() == 1.0


@pytest.mark.parametrize("exploration", [GAUSSIAN, DRIFT])
def test_scales_are_spread_over_environments_in_equal_ratios(exploration: dict[str, Any]) -> None:
    policy = _policy({**exploration, "scale": 0.01, "spread": 9.0}, vector_spec(action=2_000))
    first, middle, last = _actions(policy, 3)[0].std(axis=1)
    assert middle / first == pytest.approx(3.0, rel=0.1)
    assert last / middle == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("exploration", [GAUSSIAN, DRIFT])
def test_several_policies_together_explore_like_a_single_one(exploration: dict[str, Any]) -> None:
    description, spec, obs = {**exploration, "spread": 9.0}, vector_spec(), np.zeros((5, 5), np.float32)
    whole = _policy(description, spec, num_envs=5)
    action, memory, _ = whole.act(obs, whole.initial_carry(5), np.random.default_rng(0))
    rng = np.random.default_rng(0)
    for rows in (slice(0, 2), slice(2, 5)):
        count = rows.stop - rows.start
        policy = _policy(description, spec, num_envs=count, first_env=rows.start, total_envs=5)
        own, carry, _ = policy.act(obs[rows], policy.initial_carry(count), rng)
        assert own.tobytes() == action[rows].tobytes()
        assert carry.tobytes() == memory[rows].tobytes()
    whole_range = scales(description, 5)
    assert [scales(description, 1, each, 5)[0, 0] for each in range(5)] == whole_range[:, 0].tolist()


@pytest.mark.parametrize(
    "envs", [{"first_env": 1}, {"first_env": -1, "total_envs": 5}, {"num_envs": 3, "total_envs": 2}]
)
def test_environments_that_are_not_among_the_total_are_refused(envs: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"total_envs at least first_env \+ num_envs"):
        _policy(GAUSSIAN, vector_spec(), **envs)


def test_drifting_noise_is_correlated_and_forgotten_where_the_carry_is_reset() -> None:
    policy = _policy(DRIFT, vector_spec(action=2))
    path = _actions(policy, 1, steps=4_000)[:, 0, 0]
    assert np.corrcoef(path[1:], path[:-1])[0, 1] > 0.95
    rng, obs = np.random.default_rng(0), np.zeros((2, 5), np.float32)
    carry = policy.initial_carry(2)
    carry[0] = 0.5
    _, after, _ = policy.act(obs, carry, rng)
    assert np.all(after[0] > 0.4)
    assert np.all(np.abs(after[1]) < 0.1)


def test_pull_and_time_step_follow_the_formula() -> None:
    policy = _policy({**DRIFT, "scale": 0.0, "pull": 0.5, "time_step": 0.2}, vector_spec(action=2))
    carry = np.full((1, 2), 0.8, np.float32)
    action, carry, _ = policy.act(np.zeros((1, 5), np.float32), carry, np.random.default_rng(0))
    np.testing.assert_allclose(carry, 0.8 * (1 - 0.5 * 0.2), rtol=1e-6)
    np.testing.assert_allclose(action, carry)


@pytest.mark.parametrize("exploration", [GAUSSIAN, DRIFT, EPSILON])
def test_there_is_no_exploration_without_a_generator(exploration: dict[str, Any]) -> None:
    policy = _policy(exploration, choice_spec() if exploration is EPSILON else vector_spec())
    carry = policy.initial_carry(50) + 0.5
    action, after, _ = policy.act(np.zeros((50, 5), np.float32), carry, None)
    assert not action.any()
    np.testing.assert_array_equal(after, carry)


@pytest.mark.parametrize(("decay", "half_way"), [("linear", (1.0 + 0.1) / 2), ("exponential", np.sqrt(1.0 * 0.1))])
def test_epsilon_decays_over_steps_and_then_stays(decay: str, half_way: float) -> None:
    choice = RandomChoice({**EPSILON, "decay": decay}, choice_spec())
    assert choice.epsilon(0) == 1.0
    assert choice.epsilon(50) == pytest.approx(half_way)
    assert choice.epsilon(100) == choice.epsilon(10**6) == pytest.approx(0.1)


@pytest.mark.parametrize(("step", "share"), [(0, 1.0), (50, 0.55), (1_000, 0.1)])
def test_epsilon_is_the_share_of_random_choices(step: int, share: float) -> None:
    action = _actions(_policy(EPSILON, choice_spec(choices=5)), 20_000, step=step)[0]
    assert set(np.unique(action)) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert (action != 0).mean() == pytest.approx(share * 4 / 5, rel=0.05)


@pytest.mark.parametrize("kind", ["greedy", "categorical"])
def test_a_diverged_network_is_not_taken_for_a_choice(kind: str) -> None:
    policy = make_policy({"kind": kind, "activation": "relu", "dueling": False}, spec=choice_spec())
    policy.load({"actor/0/weight": np.full((5, 3), np.nan, np.float32), "actor/0/bias": np.zeros(3, np.float32)})
    action, _, _ = policy.act(np.ones((2, 5), np.float32), policy.initial_carry(2), None)
    assert np.isnan(action).all()
