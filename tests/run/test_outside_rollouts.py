"""Rollouts that were collected outside: learning from one equals learning from the same steps, acted and observed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.errors import UsageError
from offbeat.types import EnvSpec, Layout, Leaf
from specs import choice_spec, vector_spec

STEPS, ENVS = 6, 3
SMALL: dict[str, Any] = {"hidden": (8,), "rollout_steps": STEPS, "epochs": 2, "minibatches": 3}
BOTH: dict[str, Any] = {"normalise_observations": True, "normalise_rewards": True}
algorithms = pytest.mark.parametrize("algorithm", ["ppo", "appo"])

DICT = EnvSpec(
    "test",
    Layout((Leaf(("joints",), "box", (2,), "float32"), Leaf(("goal",), "box", (1,), "float32"))),
    (-1.0,),
    (1.0,),
    (1,),
)
MASKED = replace(choice_spec(3, 4), mask_key="allowed", mask_from="info")
PRIVILEGED = vector_spec(3, 2, state=4)


def make(algorithm: str, spec: EnvSpec, **settings: Any) -> offbeat.Agent:
    return offbeat.Agent(algorithm, spec, **{**SMALL, **BOTH, **settings})


def observations(spec: EnvSpec, rng: np.random.Generator, *lead: int) -> Any:
    if spec is DICT:
        return {"joints": _normal(rng, *lead, 2), "goal": _normal(rng, *lead, 1)}
    return _normal(rng, *lead, spec.observation_size)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _at(value: Any, *index: Any) -> Any:
    return {key: each[index] for key, each in value.items()} if isinstance(value, dict) else value[index]


def _successors(here: Any, final: Any, ended: np.ndarray) -> Any:
    """The next row within an episode, and `final` elsewhere."""
    if isinstance(here, dict):
        return {key: _successors(here[key], final[key], ended) for key in here}
    following = final.copy()
    following[:-1] = np.where(ended[:-1, :, None], final[:-1], here[1:])
    return following


def acted(agent: offbeat.Agent, rng: np.random.Generator) -> dict[str, Any]:
    """Fills a rollout with `act` and `observe`; returns the same one as `observe_rollout` takes it."""
    spec, lead = agent.spec, (STEPS, ENVS)
    terminated, truncated = rng.random(lead) < 0.2, rng.random(lead) < 0.2
    found: dict[str, Any] = {"obs": observations(spec, rng, *lead), "reward": _normal(rng, *lead)}
    found |= {"terminated": terminated, "truncated": truncated & ~terminated}
    ended = terminated | truncated
    found["final_obs"] = _successors(found["obs"], observations(spec, rng, *lead), ended)
    if spec.state_size:
        found |= {name: _normal(rng, *lead, spec.state_size) for name in ("state", "final_state")}
        found["final_state"] = _successors(found["state"], found["final_state"], ended)
    if spec.mask_size:
        found["mask"] = rng.random((*lead, spec.mask_size)) < 0.5
        found["mask"][..., 0] = True
    drawn, log_prob = [], []
    for step in range(STEPS):
        own: dict[str, Any] = {"mask": found["mask"][step]} if spec.mask_size else {}
        taken = agent.act(_at(found["obs"], step), **own)
        assert agent._acted is not None
        drawn.append(taken if spec.counts else agent._acted[0])
        log_prob.append(agent._acted[1]["log_prob"])
        own |= {"next_mask": own["mask"]} if own else {}
        if spec.state_size:
            own = {"state": found["state"][step], "next_state": found["final_state"][step]}
        rows = (_at(found[name], step) for name in ("reward", "final_obs", "terminated", "truncated"))
        agent.observe(_at(found["obs"], step), taken, *rows, **own)
    return found | {"action": np.stack(drawn), "log_prob": np.stack(log_prob)}


def same_learner(left: offbeat.Agent, right: offbeat.Agent) -> None:
    ours, theirs = left.learner.arrays(), right.learner.arrays()
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@algorithms
@pytest.mark.parametrize("spec", [vector_spec(3, 2), choice_spec(3, 4), DICT, PRIVILEGED, MASKED])
def test_it_is_learned_from_as_if_it_had_been_acted_and_observed(algorithm: str, spec: EnvSpec) -> None:
    first, second = make(algorithm, spec), make(algorithm, spec)
    before = {name: array.copy() for name, array in first.learner.arrays().items()}
    rng = np.random.default_rng(0)
    for rollout in range(1, 4):
        second.observe_rollout(**acted(first, rng))
        assert first.steps == second.steps == rollout * STEPS * ENVS
        assert first.update() == second.update()
        assert first.learner.updates == rollout * 6
        same_learner(first, second)
    assert any((before[name] != array).any() for name, array in first.learner.arrays().items() if "actor" in name)


def test_actions_beyond_the_bounds_are_learned_from_as_they_were_drawn() -> None:
    first, second = (make("ppo", vector_spec(3, 2), initial_log_std=1.0) for _ in range(2))
    rollout = acted(first, np.random.default_rng(0))
    assert np.abs(rollout["action"]).max() > 1.0
    second.observe_rollout(**rollout)
    assert first.update() == second.update()
    same_learner(first, second)


@algorithms
def test_schedules_follow_the_steps_of_such_rollouts(algorithm: str) -> None:
    own: dict[str, Any] = {"schedule": "linear", "total_steps": 2 * STEPS * ENVS + 1}
    first, second = make(algorithm, vector_spec(3, 2), **own), make(algorithm, vector_spec(3, 2), **own)
    rng, rates = np.random.default_rng(0), []
    for _ in range(3):
        second.observe_rollout(**acted(first, rng))
        first.update()
        second.update()
        rates.append(second.learner.rates()["learning"])
        assert rates[-1] == first.learner.rates()["learning"]
    assert rates == pytest.approx([rates[0], rates[0] * 2 / 3, rates[0] / 3])  # the third is finished, too


def test_final_observations_are_read_only_where_an_episode_ended_and_in_the_last_row() -> None:
    first, second = make("ppo", vector_spec(3, 2)), make("ppo", vector_spec(3, 2))
    rollout = acted(make("ppo", vector_spec(3, 2)), np.random.default_rng(0))
    ended = rollout["terminated"] | rollout["truncated"]
    ended[-1] = True
    first.observe_rollout(**rollout)
    second.observe_rollout(**{**rollout, "final_obs": np.where(ended[..., None], rollout["final_obs"], 9.0)})
    assert first.update() == second.update()
    same_learner(first, second)


def test_a_rollout_of_old_weights_is_dropped_after_its_turn() -> None:
    agent = make("appo", vector_spec(3, 2), sample_reuse=3)
    agent.training.experience.settings = replace(agent.training.experience.settings, max_policy_lag=5)
    rollout = acted(make("ppo", vector_spec(3, 2)), np.random.default_rng(0))
    agent.observe_rollout(**rollout)
    agent.update()
    assert agent.training.due() == 0  # six updates later it is too old for another turn
    agent.observe_rollout(**rollout, version=agent.learner.updates + 6)
    agent.update()
    assert agent.training.due() == 6


@algorithms
def test_one_that_waits_for_its_turn_is_saved(algorithm: str, tmp_path: Path) -> None:
    first, second = make(algorithm, MASKED), make(algorithm, MASKED)
    first.observe_rollout(**acted(make(algorithm, MASKED), np.random.default_rng(0)))
    first.save(tmp_path)
    second.load(tmp_path)
    assert first.update() == second.update() != {}
    same_learner(first, second)
    assert (second.steps, second.learner.updates) == (STEPS * ENVS, 6)


def test_it_may_follow_a_rollout_that_was_acted_and_be_followed_by_one() -> None:
    agent, rng = make("ppo", vector_spec(3, 2)), np.random.default_rng(0)
    other = make("ppo", vector_spec(3, 2))
    for rollout in range(4):
        if rollout % 2:
            agent.observe_rollout(**acted(other, rng))
        else:
            acted(agent, rng)
        assert agent.update() != {}
    assert (agent.steps, agent.learner.updates) == (4 * STEPS * ENVS, 24)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward": np.zeros(STEPS)}, r"reward has shape \(6,\); it must be \(T, N\)"),
        ({"reward": np.zeros((STEPS, 0))}, r"reward has shape \(6, 0\)"),
        ({"reward": np.full((STEPS, ENVS), np.nan)}, "reward holds numbers that are not finite"),
        ({"obs": np.zeros((ENVS, STEPS, 3))}, r"an array has shape \(3, 6, 3\); .* it must begin \(6, 3\)"),
        ({"obs": np.full((STEPS, ENVS, 3), np.nan)}, "not finite"),
        ({"final_obs": np.zeros((1, ENVS, 3))}, r"shape \(1, 3, 3\)"),
        ({"action": np.zeros((STEPS, ENVS, 5))}, r"action has shape \(6, 3, 5\) .* must be \(6, 3, 2\)"),
        ({"log_prob": np.zeros((STEPS, ENVS, 2))}, r"log_prob has shape \(6, 3, 2\)"),
        ({"log_prob": np.full((STEPS, ENVS), "no")}, "log_prob .* numbers"),
        ({"terminated": np.zeros(STEPS)}, r"terminated must be True or False, of shape \(6, 3\)"),
        ({"truncated": np.full((STEPS, ENVS), 0.5)}, "truncated must be True or False"),
        ({"state": None}, "pass state= and final_state="),
        ({"final_state": np.zeros((STEPS, ENVS, 1))}, r"final_state has shape \(6, 3, 1\)"),
        ({"mask": np.ones((STEPS, ENVS, 2))}, "mask was given, but this agent learns without masks"),
    ],
)
def test_one_that_is_refused_changes_nothing(changes: dict[str, Any], words: str) -> None:
    agent = make("ppo", PRIVILEGED)
    rollout = acted(make("ppo", PRIVILEGED), np.random.default_rng(0))
    with pytest.raises(UsageError, match=words):
        agent.observe_rollout(**{**rollout, **changes})
    assert (agent.steps, len(agent.experience), agent.update()) == (0, 0, {})
    agent.observe_rollout(**rollout)
    assert agent.update() != {}


def test_masks_are_needed_and_hold() -> None:
    agent, rollout = make("ppo", MASKED), acted(make("ppo", MASKED), np.random.default_rng(0))
    with pytest.raises(UsageError, match="mask is missing"):
        agent.observe_rollout(**{**rollout, "mask": None})
    with pytest.raises(UsageError, match="the mask forbids an action"):
        agent.observe_rollout(
            **{**rollout, "action": (rollout["action"] + 1) % 4, "mask": np.eye(4)[rollout["action"]]}
        )
    with pytest.raises(UsageError, match="outside the environment's bounds"):
        agent.observe_rollout(**{**rollout, "action": rollout["action"] + 4})
    assert agent.steps == 0


def test_only_one_waits_at_a_time_and_only_where_rollouts_are_learned_from() -> None:
    agent, rollout = make("ppo", vector_spec(3, 2)), acted(make("ppo", vector_spec(3, 2)), np.random.default_rng(0))
    agent.observe_rollout(**rollout)
    with pytest.raises(UsageError, match="call update first"):
        agent.observe_rollout(**rollout)
    assert agent.steps == STEPS * ENVS
    with pytest.raises(UsageError, match="sac learns from transitions: use observe"):
        offbeat.Agent("sac", vector_spec(3, 2)).observe_rollout(**rollout)
