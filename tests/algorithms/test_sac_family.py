"""SAC's relatives: Discrete actions against the objective written out, and what REDQ and DroQ change."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from driven_learner import Learner
from offbeat.algorithms.configs import Fixed, Learned
from offbeat.algorithms.torch import sac
from offbeat.errors import SpaceError, UsageError
from offbeat.settings import flatten, make_config, make_learner_config, train_settings, with_changes
from specs import choice_spec, random_transitions, vector_spec

SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 32}


def _learner(algorithm: str, config: Any, spec: Any, precision: str = "float64") -> Learner:
    return Learner(algorithm, config, spec, rng=np.random.default_rng(1), precision=precision)


def _noise(learner: Learner, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(rng.standard_normal(learner.noise_shape))


@pytest.mark.parametrize("gradients", ["auto", "autograd"])
@pytest.mark.parametrize("actor_value", ["min", "mean"])
def test_discrete_gradients_are_those_of_the_written_out_objective(gradients: str, actor_value: str) -> None:
    config = make_learner_config("sac", **SMALL, temperature=Fixed(0.3), gradients=gradients, actor_value=actor_value)
    learner, rng = _learner("sac", config, choice_spec(5, 3)), np.random.default_rng(0)
    state, batch = learner.state, random_transitions(rng, learner.spec, 32, np.float64)
    state.target.flat.mul_(1.2)
    actor, critic, target = (network.module for network in (state.actor, state.critic, state.target))
    obs, next_obs, reward, discount = (
        torch.from_numpy(each) for each in (batch.obs, batch.next_obs, batch.reward, batch.discount)
    )
    empty, taken = torch.zeros(32, 0, dtype=torch.float64), torch.from_numpy(batch.action[:, 0]).long()
    with torch.no_grad():
        prob = actor(next_obs).softmax(1)
        goal = reward + discount * (prob * (target(next_obs, empty).amin(0) - 0.3 * prob.log())).sum(1)
    q = critic(obs, empty)
    loss = 0.5 * ((q[:, torch.arange(32), taken] - goal) ** 2).mean(1).sum()
    expected = torch.cat([each.reshape(-1) for each in torch.autograd.grad(loss, list(critic.parameters()))])
    learner.update_once(batch, _noise(learner, rng))
    torch.testing.assert_close(state.critic.gradient, expected, rtol=1e-9, atol=1e-12)

    # The actor's half uses the critics of after their step, which is where they are now; the actor's step is undone.
    before = _learner("sac", config, choice_spec(5, 3)).state.actor.flat
    state.actor.flat.copy_(before)
    prob = actor(obs).softmax(1)
    value = critic(obs, empty).detach()
    value = value.amin(0) if actor_value == "min" else value.mean(0)
    objective = (prob * (0.3 * prob.log() - value)).sum(1).mean()
    expected = torch.cat([each.reshape(-1) for each in torch.autograd.grad(objective, list(actor.parameters()))])
    torch.testing.assert_close(state.actor.gradient, expected, rtol=1e-9, atol=1e-12)
    assert learner.drain()["actor_loss"] == pytest.approx(objective.item(), rel=1e-9)


@pytest.mark.parametrize("target", [None, 0.9])
def test_the_default_target_entropy_of_discrete_actions_is_that_of_the_paper(target: float | None) -> None:
    config = make_learner_config("sac", **SMALL, temperature=Learned(target_entropy=target))
    learner, rng = _learner("sac", config, choice_spec(5, 4)), np.random.default_rng(0)
    learner.update_once(random_transitions(rng, learner.spec, 32, np.float64), np.zeros(0))
    moment = learner.arrays()["temperature_optimiser/mean"].item() / 0.1  # Adam's first one is a tenth of the gradient
    wanted = 0.98 * np.log(4) if target is None else target
    assert moment == pytest.approx(learner.drain()["entropy"] - wanted, rel=1e-9)


def test_redq_has_its_authors_ratio_and_delay_without_a_preset() -> None:
    config = make_config("redq", {})
    assert (config.run.pace.updates_per_step, config.learner.actor_every) == (20.0, 20)
    assert make_config("redq", {"updates_per_step": 2}).run.pace.updates_per_step == 2.0
    assert make_config("redq", flatten(config)) == config
    assert with_changes(make_config("redq", {"updates_per_step": 3}), total_steps=5).run.pace.updates_per_step == 3.0
    shown = {each.name: each.default_words for each in train_settings("redq")}
    assert shown["updates_per_step"] == "20.0"
    assert {each.name: each.default_words for each in train_settings("sac")}["updates_per_step"] == "1.0"
    assert offbeat.Agent("redq", vector_spec(3, 1), warmup_steps=1).training.pace.due(2, 0) == 20


def test_the_target_is_the_least_of_a_drawn_subset() -> None:
    config = make_learner_config("redq", **SMALL, critics=5, target_subset=2)
    spec = vector_spec(5, 2)
    noise = np.zeros(sac.noise_shape(config, spec))
    noise[-5:] = [3.0, -1.0, 2.0, -2.0, 1.0]
    for_policy, members = sac.split_noise(config, torch.from_numpy(noise))
    assert for_policy.shape == (2, 32, 2)
    assert members is not None
    assert sorted(members.tolist()) == [1, 3]
    q = torch.arange(10.0).view(5, 2)
    assert sac.min_over_critics(q, members).tolist() == [2.0, 3.0]
    assert sac.min_over_critics(q, None).tolist() == [0.0, 1.0]


def test_all_subsets_are_equally_likely() -> None:
    config, rng = make_learner_config("redq", **SMALL, critics=4, target_subset=2), np.random.default_rng(0)
    shape = sac.noise_shape(config, vector_spec(5, 2))
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(3_000):
        members = sac.split_noise(config, torch.from_numpy(rng.standard_normal(shape)))[1]
        assert members is not None
        key = tuple(sorted(members.tolist()))
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6
    assert all(400 < count < 600 for count in counts.values())


@pytest.mark.parametrize("gradients", ["auto", "autograd"])
def test_the_actor_may_climb_the_mean_of_the_critics(gradients: str) -> None:
    config = make_learner_config("redq", **SMALL, critics=3, temperature=Fixed(0.2), gradients=gradients, actor_every=1)
    learner, rng = _learner("redq", config, vector_spec(5, 2)), np.random.default_rng(0)
    batch, noise = random_transitions(rng, learner.spec, 32, np.float64), _noise(learner, rng)
    before = learner.state.actor.flat.clone()
    learner.update_once(batch, noise)
    learner.state.actor.flat.copy_(before)
    obs, module = torch.from_numpy(batch.obs), learner.state.actor.module
    action, log_prob, _ = sac.squash(module(obs), torch.from_numpy(noise[:64].reshape(32, 2)), (-20.0, 2.0))
    q = learner.state.critic.module(obs, torch.zeros(32, 0, dtype=torch.float64), action)
    loss = (0.2 * log_prob - q.mean(0)).mean()
    expected = torch.cat([each.reshape(-1) for each in torch.autograd.grad(loss, list(module.parameters()))])
    torch.testing.assert_close(learner.state.actor.gradient, expected, rtol=1e-9, atol=1e-12)


def test_dropout_and_layer_norm_of_the_critics_leave_the_actor_alone_and_repeat_exactly() -> None:
    config = make_learner_config("sac", **SMALL, critic_dropout=0.2, critic_layer_norm=True)
    spec, flats = vector_spec(5, 2), []
    for _ in range(2):
        learner, rng = _learner("sac", config, spec), np.random.default_rng(0)
        assert learner.state.actor.explicit
        assert not learner.state.critic.explicit
        names = [name for name, _ in learner.state.critic.named()]
        assert "0/norm/scale" in names
        assert all("norm" not in name for name, _ in learner.state.actor.named())
        for _ in range(3):
            learner.update_once(random_transitions(rng, spec, 32, np.float64), _noise(learner, rng))
        flats.append(learner.state.critic.flat.clone())
        torch.manual_seed(len(flats))  # what a user does with torch's generator in between has no say
    torch.testing.assert_close(*flats, rtol=0, atol=0)
    obs = [torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, 0, dtype=torch.float64)]
    obs.append(torch.zeros(4, 2, dtype=torch.float64))
    assert not torch.equal(learner.state.critic(*obs), learner.state.critic(*obs))


@pytest.mark.parametrize(
    ("algorithm", "spec"),
    [
        *((algorithm, vector_spec(5, 2)) for algorithm in ("sac", "redq", "td3", "ddpg")),
        ("sac", choice_spec(5, 3)),
        ("redq", choice_spec()),
    ],
)
def test_the_actor_learns_after_the_last_critic_update_of_a_group(algorithm: str, spec: Any) -> None:
    config = make_learner_config(algorithm, **SMALL, actor_every=3)
    learner, rng, moved = _learner(algorithm, config, spec), np.random.default_rng(0), []
    for _ in range(7):
        before = learner.arrays()
        learner.update_once(random_transitions(rng, spec, 32, np.float64), _noise(learner, rng))
        after = learner.arrays()
        assert not np.array_equal(after["critic/0/weight"], before["critic/0/weight"])
        changed = [
            not np.array_equal(after[name], before[name])
            for name in ("actor/0/weight", "log_temperature")
            if name in before
        ]
        assert len(set(changed)) == 1
        moved.append(changed[0])
    assert moved == [False, False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("algorithm", "config", "spec", "words"),
    [
        (
            "td3",
            make_learner_config("td3"),
            choice_spec(),
            "Discrete actions, which td3 does not take; use sac, redq, dqn, ppo or appo",
        ),
        (
            "dqn",
            make_learner_config("dqn"),
            vector_spec(),
            "Box actions, which dqn does not take; use sac, redq, td3, ddpg, ppo or appo",
        ),
    ],
)
def test_actions_that_an_algorithm_cannot_take_are_refused_with_one_that_can(
    algorithm: str, config: Any, spec: Any, words: str
) -> None:
    with pytest.raises(SpaceError, match=words):
        _learner(algorithm, config, spec)


@pytest.mark.parametrize("algorithm", ["sac", "redq", "td3", "ddpg", "dqn"])
def test_nothing_off_policy_takes_independent_choices_for_a_box_or_one_choice(algorithm: str) -> None:
    for size in (1, 2):
        spec = dataclasses.replace(vector_spec(action=size), action_dtype="int64", branches=(2, 3)[:size])
        with pytest.raises(
            SpaceError, match=f"MultiDiscrete actions, which {algorithm} does not take; use ppo or appo"
        ):
            _learner(algorithm, make_learner_config(algorithm), spec)


@pytest.mark.parametrize("algorithm", ["sac", "redq"])
@pytest.mark.parametrize(("name", "value"), [("log_std_min", -5.0), ("log_std_max", 1.0)])
def test_discrete_actions_have_no_deviation_to_clamp(algorithm: str, name: str, value: float) -> None:
    config = make_learner_config(algorithm, **{name: value})
    with pytest.raises(UsageError, match=f"{name} needs Box actions, which .* leave {name} out"):
        _learner(algorithm, config, choice_spec())
    _learner(algorithm, make_learner_config(algorithm), choice_spec())
    _learner(algorithm, config, vector_spec())


def test_more_critics_in_the_target_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="target_subset=3 is more than critics=2"):
        make_learner_config("sac", target_subset=3)


def test_dqn_has_nobody_to_show_a_privileged_state_to() -> None:
    spec = dataclasses.replace(choice_spec(), state=choice_spec().layout, state_key="state", state_from="info")
    with pytest.raises(UsageError, match="leave state_key out"):
        _learner("dqn", make_learner_config("dqn"), spec)


@pytest.mark.parametrize("hidden", [(), (1,)])
def test_networks_without_or_with_the_narrowest_hidden_layer_learn_alike_on_both_passes(
    hidden: tuple[int, ...],
) -> None:
    for algorithm, spec in (("sac", vector_spec(5, 2)), ("dqn", choice_spec(5, 3))):
        flats = []
        for gradients in ("auto", "autograd"):
            config = make_learner_config(algorithm, hidden=hidden, batch_size=32, gradients=gradients)
            learner, rng = _learner(algorithm, config, spec), np.random.default_rng(0)
            for _ in range(3):
                learner.update_once(random_transitions(rng, spec, 32, np.float64), _noise(learner, rng))
            flats.append(learner.state.critic.flat)
        torch.testing.assert_close(*flats, rtol=1e-9, atol=1e-12)
