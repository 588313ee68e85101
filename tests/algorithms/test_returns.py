"""V-trace against published figures, against its definition and against GAE; episodes' ends and the three bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offbeat.algorithms.torch.returns import vtrace

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
UNBOUNDED: dict[str, Any] = {"rho_bar": math.inf, "c_bar": math.inf, "pg_rho_bar": math.inf}
Rollout = dict[str, Any]


def _rollout(steps: int, envs: int, seed: int = 0, ends: float = 0.0) -> Rollout:
    """Random rows in float64; a row ends an episode in either way, or in both at once, each with chance `ends`."""
    rng = np.random.default_rng(seed)
    names = ("behaviour_log_prob", "target_log_prob", "reward", "value", "next_value")
    rows = {name: torch.from_numpy(rng.standard_normal((steps, envs))) for name in names}
    flags = {name: torch.from_numpy(rng.random((steps, envs)) < ends) for name in ("terminated", "truncated")}
    goes_on = ~(flags["terminated"] | flags["truncated"])[:-1]
    rows["next_value"][:-1][goes_on] = rows["value"][1:][goes_on]
    return rows | flags


def _changed(rollout: Rollout, name: str, at: tuple[int, int], to: float) -> Rollout:
    changed = rollout[name].clone()
    changed[at] = to
    return rollout | {name: changed}


def _where(before: Tensor, after: Tensor) -> set[tuple[int, int]]:
    """Rows that differ at all."""
    return {(int(t), int(n)) for t, n in (before != after).nonzero()}


# Published figures


def test_targets_and_advantages_equal_those_of_the_published_case() -> None:
    """Espeholt et al.'s own test case: log rho from -2.5 to 1.5, so that all three bounds are met."""
    count = torch.arange(5.0, dtype=torch.float64).unsqueeze(1)
    never = torch.zeros(5, 1, dtype=torch.bool)
    targets, advantages = vtrace(
        behaviour_log_prob=torch.full_like(count, -1.0),
        target_log_prob=count - 3.5,
        reward=count,
        value=count,
        next_value=torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0], dtype=torch.float64).unsqueeze(1),
        terminated=never,
        truncated=never,
        gamma=0.9,
        lambda_=1.0,
        rho_bar=3.7,
        pg_rho_bar=2.2,
    )
    assert targets[:, 0].tolist() == pytest.approx([0.2001819, 2.7096824, 8.5136279, 11.9323966, 7.33], abs=1e-7)
    assert advantages[:, 0].tolist() == pytest.approx([0.2001819, 1.7096824, 6.5136279, 10.8766142, 1.98], abs=1e-7)


def _rlax_case() -> Rollout:
    """The inputs of rlax's test: two rollouts of four steps, gamma of each step, an episode's end where it was 0."""

    def by_time(values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).T

    def log_prob(logits: list[list[list[float]]]) -> Tensor:
        actions = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])
        all_actions = torch.tensor(logits, dtype=torch.float64).log_softmax(-1)
        return all_actions.gather(-1, actions.unsqueeze(-1)).squeeze(-1).T

    behaviour = [
        [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]],
        [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]],
    ]
    target = [
        [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
        [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]],
    ]
    terminated = torch.zeros(4, 2, dtype=torch.bool)
    terminated[0, 0] = True
    return {
        "behaviour_log_prob": log_prob(behaviour),
        "target_log_prob": log_prob(target),
        "reward": by_time([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]),
        "gamma": by_time([[0.9, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]),
        "value": by_time([[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]]),
        "next_value": by_time([[1.1, -3.1, 0.0, 8.4], [0.1, -1.1, 7.4, -1.2]]),
        "terminated": terminated,
        "truncated": torch.zeros_like(terminated),
    }


def test_errors_of_two_rollouts_with_an_end_in_one_equal_those_that_rlax_publishes() -> None:
    rollout = _rlax_case()
    targets, advantages = vtrace(**rollout, lambda_=1.0)
    expected = torch.tensor(
        [[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.3327293e-5, -13.54]],
        dtype=torch.float64,
    ).T
    torch.testing.assert_close(targets - rollout["value"], expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(advantages, expected, rtol=1e-6, atol=1e-7)


def test_with_equal_bounds_advantages_are_the_errors_of_the_targets_at_any_lambda() -> None:
    rollout = _rlax_case()
    targets, advantages = vtrace(**rollout, lambda_=0.8)
    torch.testing.assert_close(advantages, targets - rollout["value"], **EXACT)
    assert _where(targets, vtrace(**rollout, lambda_=1.0)[0])


# The definition, and GAE


def _by_definition(
    rollout: Rollout, gamma: float, lambda_: float, rho_bar: float, c_bar: float, pg_rho_bar: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each target a sum over the rest of its episode, each advantage from the next target; no recursion."""
    rows = {name: tensor.numpy() for name, tensor in rollout.items()}
    reward, value, next_value = rows["reward"], rows["value"], rows["next_value"]
    rho = np.exp(rows["target_log_prob"]) / np.exp(rows["behaviour_log_prob"])
    steps, envs = reward.shape
    targets, advantages = np.empty((steps, envs)), np.empty((steps, envs))
    for n in range(envs):
        ends = [t for t in range(steps) if rows["terminated"][t, n] or rows["truncated"][t, n] or t == steps - 1]
        for s in range(steps):
            end = min(t for t in ends if t >= s)
            targets[s, n] = value[s, n]
            for t in range(s, end + 1):
                worth = 0.0 if rows["terminated"][t, n] else next_value[t, n]
                delta = min(rho_bar, rho[t, n]) * (reward[t, n] + gamma * worth - value[t, n])
                trace = math.prod(lambda_ * min(c_bar, rho[i, n]) for i in range(s, t))
                targets[s, n] += gamma ** (t - s) * trace * delta
        for t in range(steps):
            if t in ends:
                worth = 0.0 if rows["terminated"][t, n] else next_value[t, n]
            else:
                worth = lambda_ * targets[t + 1, n] + (1.0 - lambda_) * value[t + 1, n]
            advantages[t, n] = min(pg_rho_bar, rho[t, n]) * (reward[t, n] + gamma * worth - value[t, n])
    return targets, advantages


bounds = st.sampled_from([0.5, 1.0, 1.7, 4.0, math.inf])


@settings(max_examples=200)
@given(
    steps=st.integers(1, 9),
    envs=st.integers(1, 3),
    seed=st.integers(0, 2**32),
    ends=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    gamma=st.floats(0.0, 1.0),
    lambda_=st.floats(0.0, 1.0),
    rho_bar=bounds,
    c_bar=bounds,
    pg_rho_bar=bounds,
)
def test_equals_the_sum_of_its_definition(
    steps: int, envs: int, seed: int, ends: float, gamma: float, lambda_: float, **bars: Any
) -> None:
    rollout = _rollout(steps, envs, seed, ends)
    expected = _by_definition(rollout, gamma, lambda_, **bars)
    for result, wanted in zip(vtrace(**rollout, gamma=gamma, lambda_=lambda_, **bars), expected, strict=True):
        torch.testing.assert_close(result, torch.from_numpy(wanted), **EXACT)


def _gae(rollout: Rollout, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    """Returns and advantages, environment by environment in plain numbers."""
    advantages = torch.zeros_like(rollout["reward"])
    for n in range(advantages.shape[1]):
        advantage = 0.0
        for t in reversed(range(len(advantages))):
            reward, value, next_value, terminated, truncated = (
                rollout[name][t, n].item() for name in ("reward", "value", "next_value", "terminated", "truncated")
            )
            if terminated:
                advantage = reward - value
            elif truncated:
                advantage = reward + gamma * next_value - value
            else:
                advantage = reward + gamma * next_value - value + gamma * lambda_ * advantage
            advantages[t, n] = advantage
    return advantages + rollout["value"], advantages


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("bars", [{}, UNBOUNDED], ids=["bounds of 1", "no bounds"])
def test_on_policy_it_is_gae_and_its_returns(lambda_: float, bars: dict[str, Any]) -> None:
    rollout = _rollout(40, 5, ends=0.08)
    assert rollout["terminated"].any()
    assert rollout["truncated"].any()
    rollout["behaviour_log_prob"] = rollout["target_log_prob"]
    results = vtrace(**rollout, gamma=0.97, lambda_=lambda_, **bars)
    for result, wanted in zip(results, _gae(rollout, 0.97, lambda_), strict=True):
        torch.testing.assert_close(result, wanted, **EXACT)


# Ends of episodes


def test_truncation_bootstraps_with_the_final_observation_but_termination_does_not() -> None:
    ones = torch.ones(2, 4, dtype=torch.float64)
    terminated = torch.tensor([[True, False, True, False], [False] * 4])
    truncated = torch.tensor([[False, True, True, False], [False] * 4])
    next_value = torch.tensor([[100.0, 100.0, 100.0, 2.0], [30.0] * 4], dtype=torch.float64)
    rows: Rollout = {"behaviour_log_prob": ones, "target_log_prob": ones, "reward": ones, "value": 2.0 * ones}
    targets, advantages = vtrace(
        **rows, next_value=next_value, terminated=terminated, truncated=truncated, gamma=0.5, lambda_=1.0
    )
    # The rows below are worth 1 + 0.5 * 30 = 16, which reaches only the environment whose episode goes on.
    assert targets.tolist() == [[1.0, 51.0, 1.0, 9.0], [16.0] * 4]
    assert advantages.tolist() == [[-1.0, 49.0, -1.0, 7.0], [14.0] * 4]


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@pytest.mark.parametrize("name", ["reward", "value", "next_value", "target_log_prob"])
@pytest.mark.parametrize("to", [-9.0, math.nan])
def test_what_stands_after_the_end_has_no_say(flag: str, name: str, to: float) -> None:
    whole = _rollout(6, 2)
    for rollout, reached in ((whole, {0, 1, 2, 3}), (_changed(whole, flag, (2, 1), True), {3})):
        before = vtrace(**rollout, gamma=0.9, lambda_=0.95)
        after = vtrace(**_changed(rollout, name, (4, 1), to), gamma=0.9, lambda_=0.95)
        for earlier, later in zip(before, after, strict=True):
            assert _where(earlier, later) - {(4, 1)} == {(t, 1) for t in reached}


def test_the_value_of_a_final_observation_counts_only_where_the_episode_was_truncated() -> None:
    rollout = _changed(_changed(_rollout(6, 2), "terminated", (2, 0), True), "truncated", (2, 1), True)
    before = vtrace(**rollout, gamma=0.9, lambda_=0.95)
    for env, reached in ((0, set()), (1, {(0, 1), (1, 1), (2, 1)})):
        after = vtrace(**_changed(rollout, "next_value", (2, env), 50.0), gamma=0.9, lambda_=0.95)
        for earlier, later in zip(before, after, strict=True):
            assert _where(earlier, later) == reached


# The three bounds: one row alone, in the middle of an episode that is neither the first nor the last, lies above them.


def _with_one_large_rho() -> Rollout:
    """rho is 0.5 and, in row (4, 1), 6; the episode there goes from row 2 to row 5."""
    rollout = _changed(_changed(_rollout(8, 3), "terminated", (1, 1), True), "truncated", (5, 1), True)
    rollout["target_log_prob"] = rollout["behaviour_log_prob"] + math.log(0.5)
    return _changed(rollout, "target_log_prob", (4, 1), rollout["behaviour_log_prob"][4, 1].item() + math.log(6.0))


@pytest.mark.parametrize(
    ("bound", "targets", "advantages"),
    [
        ("rho_bar", {(2, 1), (3, 1), (4, 1)}, {(2, 1), (3, 1)}),
        ("c_bar", {(2, 1), (3, 1), (4, 1)}, {(2, 1), (3, 1)}),
        ("pg_rho_bar", set(), {(4, 1)}),
    ],
)
def test_each_bound_moves_what_it_bounds_and_nothing_else(
    bound: str, targets: set[tuple[int, int]], advantages: set[tuple[int, int]]
) -> None:
    rollout = _with_one_large_rho()
    tight, loose, looser = (
        vtrace(**rollout, gamma=0.9, lambda_=0.95, **(UNBOUNDED | {bound: at})) for at in (2.0, 7.0, math.inf)
    )
    assert (_where(tight[0], loose[0]), _where(tight[1], loose[1])) == (targets, advantages)
    assert not _where(loose[0], looser[0])
    assert not _where(loose[1], looser[1])


def test_each_bound_weighs_its_own_term() -> None:
    """target - V = min(rho, rho_bar) td + gamma lambda min(rho, c_bar) (v' - V'), at the row with the large rho."""
    rollout, at = _with_one_large_rho(), (4, 1)
    targets, advantages = vtrace(**rollout, gamma=0.9, lambda_=0.95, rho_bar=2.0, c_bar=3.0, pg_rho_bar=5.0)
    td = rollout["reward"][at] + 0.9 * rollout["next_value"][at] - rollout["value"][at]
    later = 0.9 * 0.95 * (targets[5, 1] - rollout["value"][5, 1])
    torch.testing.assert_close(targets[at] - rollout["value"][at], 2.0 * td + 3.0 * later, **EXACT)
    torch.testing.assert_close(advantages[at], 5.0 * (td + later), **EXACT)


def test_at_the_end_of_an_episode_there_is_no_trace_to_bound() -> None:
    rollout = _changed(_with_one_large_rho(), "truncated", (4, 1), True)
    loose, tight = (vtrace(**rollout, gamma=0.9, lambda_=0.95, **(UNBOUNDED | {"c_bar": at})) for at in (math.inf, 1.0))
    assert not _where(loose[0], tight[0])
    assert not _where(loose[1], tight[1])


# Tensors


def test_float32_stays_float32_and_agrees_with_float64() -> None:
    rollout = _rollout(32, 4, ends=0.1)
    single = {name: each.float() if each.is_floating_point() else each for name, each in rollout.items()}
    double = vtrace(**rollout, gamma=0.99, lambda_=0.95)
    for result, wanted in zip(vtrace(**single, gamma=0.99, lambda_=0.95), double, strict=True):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_nothing_flows_back_through_it_and_its_inputs_stay_as_they_are(mode: Callable[[], torch.enable_grad]) -> None:
    rollout = _rollout(6, 2, ends=0.2)
    copies = {name: each.clone() for name, each in rollout.items()}
    rollout = {name: each.requires_grad_(each.is_floating_point()) for name, each in rollout.items()}
    with mode():
        targets, advantages = vtrace(**rollout, gamma=0.9, lambda_=0.95)
    assert not targets.requires_grad
    assert not advantages.requires_grad
    assert all(torch.equal(each, copies[name]) for name, each in rollout.items())
