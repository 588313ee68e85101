"""What a turn begins with, against a slow loop: true successors' values, advantages, value targets, and references."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from driven_learner import Learner
from offbeat.algorithms.configs import APPO
from offbeat.algorithms.torch import appo
from offbeat.types import RolloutBatch
from small_rollouts import BOX, BRANCHES, CHOICE, STATE, make, moved, prepared, rollout, turn

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
TROUBLED: dict[str, Any] = {"steps": 30, "envs": 4, "ends": 0.1, "gaps": 0.15, "breaks": 0.1}


def reference_of(learner: Learner) -> Any:
    return learner.state.actor if learner.state.target is None else learner.state.target


def slowly(learner: Learner, experience: RolloutBatch) -> dict[str, np.ndarray]:
    """Row by row from the last: all that a turn needs of the valid rows, in the order (T, N)."""
    config, spec, columns, valid = learner.config, learner.spec, experience.columns, experience.valid
    gamma, lambda_, (steps, envs) = config.returns.gamma, config.returns.gae_lambda, valid.shape
    head, policy = appo.head(config, spec), reference_of(learner)

    def value(t: int, n: int, when: str = "") -> float:
        parts = [torch.from_numpy(columns[when + name][t, n : n + 1]) for name in ("obs", "state")]
        return learner.state.critic.module(*parts).item()

    def log_prob(t: int, n: int) -> float:
        obs, action = (torch.from_numpy(columns[name][t, n : n + 1]) for name in ("obs", "action"))
        return head(policy.module(obs), appo.log_std(policy), action)[0].item()

    found: dict[tuple[int, int], dict[str, float]] = {}
    for n in range(envs):
        later = 0.0  # target - value of the next row
        for t in reversed(range(steps)):
            if not valid[t, n]:
                later = 0.0
                continue
            terminated, truncated = columns["terminated"][t, n], columns["truncated"][t, n]
            goes_on = t + 1 < steps and valid[t + 1, n] and columns["episode"][t + 1, n] == columns["episode"][t, n]
            if terminated or truncated or not goes_on:
                later = 0.0
            behaviour = columns["log_prob"][t, n]
            reference = log_prob(t, n) if isinstance(config, APPO) else behaviour
            rho, here = np.exp(reference - behaviour), value(t, n)
            error = columns["reward"][t, n] + gamma * (0.0 if terminated else value(t, n, "next_")) - here
            bounds = (
                (config.correction.rho_bar, config.correction.c_bar, config.correction.advantage_rho_bar)
                if isinstance(config, APPO)
                else (1,) * 3
            )
            of_target, of_trace, of_advantage = (min(rho, bound) for bound in bounds)
            advantage = of_advantage * (error + gamma * lambda_ * later)
            later = of_target * error + of_trace * gamma * lambda_ * later
            found[t, n] = {
                "behaviour": behaviour,
                "reference": reference,
                "advantage": advantage,
                "target": here + later,
                "value": here,
            }
    return {name: np.array([found[place][name] for place in sorted(found)]) for name in found[min(found)]}


def check(learner: Learner, experience: RolloutBatch) -> appo.Minibatch:
    batch, wanted = prepared(learner, experience), slowly(learner, experience)
    for name in ("obs", "state", "action"):
        np.testing.assert_array_equal(getattr(batch, name), experience.columns[name][experience.valid])
    for name, numbers in wanted.items():
        np.testing.assert_allclose(getattr(batch, name), numbers, **EXACT, err_msg=name)
    return batch


@pytest.mark.parametrize("spec", [BOX, CHOICE, BRANCHES, STATE], ids=["box", "choice", "branches", "state"])
@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": 0.9, "gae_lambda": 0.8},
        {"algorithm": "appo", "gamma": 0.9},
        {"algorithm": "appo", "target_every": 3, "rho_bar": 0.9, "c_bar": 1.2, "advantage_rho_bar": 1.5},
    ],
    ids=["ppo", "appo", "target"],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_turn_begins_with_what_the_slow_loop_finds(spec: Any, settings: dict[str, Any], seed: int) -> None:
    learner = moved(make(spec=spec, **settings))
    if learner.state.target is not None:
        learner.state.target.flat += 0.05
    experience = rollout(learner, seed=seed, older=0.5 * isinstance(learner.config, APPO), **TROUBLED)
    columns = experience.columns
    assert min(columns[name].sum() for name in ("terminated", "truncated")) > 0
    assert not experience.valid.all()
    check(learner, experience)


def test_ppos_advantages_are_those_of_a_hand_written_gae() -> None:
    learner = moved(make(gamma=0.9, gae_lambda=0.7))
    experience = rollout(learner, steps=20, envs=3, ends=0.2)
    columns = experience.columns
    value, after = (
        learner.state.critic.module(
            *(torch.from_numpy(columns[when + name]).flatten(0, 1) for name in ("obs", "state"))
        )
        .detach()
        .view(20, 3)
        .numpy()
        for when in ("", "next_")
    )
    advantages, following = np.zeros((20, 3)), np.zeros(3)
    for t in reversed(range(20)):
        ended = columns["terminated"][t] | columns["truncated"][t]
        delta = columns["reward"][t] + 0.9 * after[t] * ~columns["terminated"][t] - value[t]
        advantages[t] = following = delta + 0.9 * 0.7 * following * ~ended
    batch = prepared(learner, experience)
    np.testing.assert_allclose(batch.advantage, advantages.ravel(), **EXACT)
    np.testing.assert_allclose(batch.target, (advantages + value).ravel(), **EXACT)


def _one(learner: Learner, change: str) -> RolloutBatch:
    """Five steps of one environment with nothing special; `change` happens to row 2."""
    experience = rollout(learner, steps=5, envs=1, ends=0.0)
    columns, valid = experience.columns, experience.valid
    if change in ("terminated", "truncated"):
        columns[change][2] = True
        columns["episode"][3:] += 1
    elif change == "broken":  # the environment was restarted: another episode, and no flag
        columns["episode"][3:] += 1
    elif change == "gap":  # a call that only reset
        valid[3] = False
        for column in columns.values():
            column[3] = 0
    if change:
        columns["next_obs"][2] = 7.0  # not what the row after it begins with
    return experience


@pytest.mark.parametrize("change", ["terminated", "truncated", "broken", "gap"])
def test_where_an_episode_ends_its_own_successor_counts_and_not_the_next_row(change: str) -> None:
    learner = moved(make(gamma=0.9, gae_lambda=0.8))
    experience = _one(learner, change)
    batch = check(learner, experience)
    with torch.no_grad():
        final = learner.state.critic.module(torch.full((1, 5), 7.0, dtype=torch.float64), torch.zeros(1, 0)).item()
    worth = 0.0 if change == "terminated" else 0.9 * final
    assert batch.target[2] == pytest.approx(experience.columns["reward"][2, 0] + worth)
    experience.columns["reward"][3:] += 50.0  # what comes later says nothing of rows up to the end, in any case
    torch.testing.assert_close(prepared(learner, experience).target[:3], batch.target[:3], rtol=0, atol=0)


def test_the_last_row_is_worth_what_its_successor_is() -> None:
    learner = moved(make(gamma=0.9))
    experience = _one(learner, "")
    batch = check(learner, experience)
    with torch.no_grad():
        final = learner.state.critic.module(torch.from_numpy(experience.columns["next_obs"][4]), torch.zeros(1, 0))
    assert batch.target[4] == pytest.approx(experience.columns["reward"][4, 0] + 0.9 * final.item())


def test_rows_that_are_not_valid_are_never_learned_from_nor_have_a_say() -> None:
    learner = moved(make())
    experience = rollout(learner, **TROUBLED)
    before = prepared(learner, experience)
    for name in ("obs", "next_obs", "reward", "log_prob"):
        experience.columns[name][~experience.valid] = 1e3
    for name in ("terminated", "truncated"):
        experience.columns[name][~experience.valid] = True
    after = prepared(learner, experience)
    assert len(after.obs) == experience.valid.sum() < experience.valid.size
    for name in ("obs", "advantage", "target", "value"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name), rtol=0, atol=0)


def test_appo_corrects_for_older_weights_and_ppo_takes_all_steps_for_its_own() -> None:
    differences = {}
    for algorithm in ("ppo", "appo"):
        learner = moved(make(algorithm))
        now, before = (prepared(learner, rollout(learner, older=older)) for older in (0.0, 0.5))
        differences[algorithm] = float((now.advantage - before.advantage).abs().max())
        assert torch.equal(before.behaviour, before.reference) == (algorithm == "ppo")
    assert differences["ppo"] == 0 < 0.1 < differences["appo"]


def test_the_reference_of_a_target_network_stays_when_the_policy_moves() -> None:
    learner = moved(make("appo", target_every=100))
    experience = rollout(learner, older=0.3)
    first = prepared(learner, experience)
    turn(learner, experience)
    torch.testing.assert_close(prepared(learner, experience).reference, first.reference, rtol=0, atol=0)
    plain = moved(make("appo"))
    first = prepared(plain, experience)
    turn(plain, experience)
    assert not torch.equal(prepared(plain, experience).reference, first.reference)


def test_a_turn_leaves_the_rollout_as_it_is() -> None:
    learner = moved(make("appo", precision="float32", normalise_observations=True, reward_clip=0.5))
    experience = rollout(learner, **TROUBLED)
    kept = copy.deepcopy(dict(experience.columns))
    turn(learner, experience)
    for name, column in experience.columns.items():
        np.testing.assert_array_equal(column, kept[name])
