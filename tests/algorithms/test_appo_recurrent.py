"""Recurrent PPO and APPO: sequences of a rollout give what acting gave, and episodes inside them are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from driven_learner import Learner
from offbeat.algorithms.torch import appo
from offbeat.errors import UsageError
from offbeat.policies import make_policy
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec, RolloutBatch
from small_rollouts import BOX, CHOICE, STATE, make, moved, rollout, turn

SMALL: dict[str, Any] = {"hidden": (8,), "recurrent_size": 6, "sequence_length": 4}
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def learner_of(algorithm: str = "ppo", spec: EnvSpec = BOX, network: str = "gru", **settings: Any) -> Learner:
    return moved(make(algorithm, spec, network=network, **{**SMALL, **settings}), 0.3)


def acted_rollout(learner: Learner, steps: int = 12, envs: int = 3, **troubles: Any) -> RolloutBatch:
    """A rollout whose actions, log-probabilities and states are those of the policy, acting step by step in NumPy.

    The rows of a gap are zeros. The episodes that go on at the first step begin with states of their own.
    """
    plain = make("ppo", learner.spec)
    made = rollout(plain, steps, envs, **troubles)
    columns, valid = dict(made.columns), made.valid
    policy = make_policy(learner.backend.policy_description())
    policy.load(learner.weights())
    rng, initial = np.random.default_rng(2), policy.initial_carry(envs)
    carry = rng.uniform(-1, 1, initial.shape).astype(np.float32)
    columns["carry"] = np.zeros((steps, envs, carry.shape[1]))
    over = columns["terminated"] | columns["truncated"] | ~valid
    over[:-1] |= columns["episode"][1:] != columns["episode"][:-1]
    for t in range(steps):
        action, after, extras = policy.act(columns["obs"][t].astype(np.float32), carry, rng)
        columns["action"][t], columns["log_prob"][t], columns["carry"][t] = action, extras["log_prob"], extras["carry"]
        carry = np.where(over[t][:, None], initial, after)
    for column in columns.values():
        column[~valid] = 0
    return RolloutBatch(columns, valid)


def sequences_of(learner: Learner, experience: RolloutBatch, count: int = 1) -> list[appo.Minibatch]:
    with torch.no_grad():
        rows = appo.prepare(learner.state, learner.config, learner.spec, learner.steps_of(experience))
        return list(rows.minibatches(torch.arange(len(rows)), count))


TROUBLED = {"ends": 0.15, "gaps": 0.15, "breaks": 0.1}


@pytest.mark.parametrize("network", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
def test_sequences_give_the_log_probabilities_with_which_the_policy_acted(
    algorithm: str, network: str, spec: EnvSpec
) -> None:
    learner = learner_of(algorithm, spec, network)
    experience = acted_rollout(learner, **TROUBLED)
    batches = sequences_of(learner, experience, 3)
    assert sum(len(each.action) for each in batches) == experience.valid.sum()
    for batch in batches:
        out = batch.of_learned(learner.state.actor(batch.obs))
        found = appo.head(learner.config, spec)(out, appo.log_std(learner.state.actor), batch.action)[0]
        np.testing.assert_allclose(found, batch.behaviour, atol=1e-6)
        np.testing.assert_allclose(batch.reference, batch.behaviour, atol=1e-6)


def slow_values(learner: Learner, experience: RolloutBatch) -> tuple[np.ndarray, np.ndarray]:
    """V of each row and of what followed it (T, N), one environment and one step at a time."""
    module: Any = learner.state.critic.module
    columns, (steps, envs) = experience.columns, experience.valid.shape
    value, following = np.zeros((2, steps, envs))
    tensor = lambda name, t, n: torch.from_numpy(columns[name][t, n : n + 1])  # noqa: E731
    with torch.no_grad():
        for n in range(envs):
            state = module.trunk.initial_state(1)
            for t in range(steps):
                features, state = module.trunk.step(tensor("obs", t, n), state)
                value[t, n] = module.mlp(features, tensor("state", t, n)).item()
                after, _ = module.trunk.step(tensor("next_obs", t, n), state)
                following[t, n] = module.mlp(after, tensor("next_state", t, n)).item()
                ended = columns["terminated"][t, n] or columns["truncated"][t, n] or not experience.valid[t, n]
                if ended or (t + 1 < steps and columns["episode"][t + 1, n] != columns["episode"][t, n]):
                    state = module.trunk.initial_state(1)
    return value, following


@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_values_and_advantages_are_those_of_a_slow_loop_over_the_rollout(network: str) -> None:
    learner = learner_of("ppo", STATE, network)
    experience = acted_rollout(learner, **TROUBLED)
    (batch,) = sequences_of(learner, experience)
    value, following = slow_values(learner, experience)
    columns, valid, returns = experience.columns, experience.valid, learner.config.returns
    advantage, (steps, envs) = np.zeros(valid.shape), valid.shape
    for n in range(envs):
        later = 0.0
        for t in reversed(range(steps)):
            ended = columns["terminated"][t, n] or columns["truncated"][t, n]
            goes_on = t + 1 < steps and valid[t + 1, n] and columns["episode"][t + 1, n] == columns["episode"][t, n]
            later = 0.0 if ended or not goes_on or not valid[t, n] else later
            bootstrap = 0.0 if columns["terminated"][t, n] else returns.gamma * following[t, n]
            later = advantage[t, n] = (
                columns["reward"][t, n] + bootstrap - value[t, n] + returns.gamma * returns.gae_lambda * later
            )

    def as_sequences(column: np.ndarray) -> np.ndarray:  # of the (L, Q) rows, those that are valid
        split = lambda each: each.reshape(-1, 4, envs).transpose(1, 0, 2).reshape(4, -1)  # noqa: E731
        return split(column)[split(valid)]

    np.testing.assert_allclose(batch.value, as_sequences(value), **CLOSE)
    np.testing.assert_allclose(batch.advantage, as_sequences(advantage), **CLOSE)
    again = batch.of_learned(learner.state.critic(batch.critic_obs, batch.state)).squeeze(1)
    np.testing.assert_allclose(again, batch.value, **CLOSE)  # sequences apart, as in one run over the rollout


def test_rows_that_are_not_valid_or_of_another_episode_have_no_effect_on_gradients() -> None:
    """A sequence of two episodes around a gap gives the sum of the gradients of the episodes alone."""
    learner = learner_of("ppo", BOX, "gru", normalise_advantages=False, sequence_length=6, rollout_steps=6)
    experience = acted_rollout(learner, 6, 1, ends=0.0)
    experience.columns["truncated"][1] = True
    experience.valid[2] = False
    experience.columns["obs"][2] = 1e3
    experience.columns["carry"][3] = 0.0
    (batch,) = sequences_of(learner, experience)
    state, config = learner.state, learner.config
    appo.update_actor(state, config, learner.spec, batch)
    appo.update_critic(state, config, batch)
    found = [state.actor.gradient.clone(), state.critic.gradient.clone()]
    wanted = [torch.zeros_like(each) for each in found]
    for rows in (slice(0, 2), slice(3, 6)):
        positions = torch.isin(batch.learned, torch.arange(6)[rows])
        own = {name: getattr(batch, name)[positions] for name in ("action", "mask", "behaviour", "reference")}
        own |= {name: getattr(batch, name)[positions] for name in ("advantage", "target", "value")}
        part = appo.Minibatch(batch.obs[rows], batch.state[rows], **own, critic_obs=batch.critic_obs[rows])
        appo.update_actor(state, config, learner.spec, part)
        appo.update_critic(state, config, part)
        share = float(positions.sum()) / len(positions)
        wanted = [
            total + share * each
            for total, each in zip(wanted, (state.actor.gradient, state.critic.gradient), strict=True)
        ]
    for one, other in zip(found, wanted, strict=True):
        assert one.abs().max() > 0
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("normalise_over", ["minibatch", "rollout"])
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_a_turn_makes_all_its_updates_with_sequences(algorithm: str, normalise_over: str) -> None:
    learner = learner_of(algorithm, network="lstm", normalise_over=normalise_over)
    before = [each.flat.clone() for each in (learner.state.actor, learner.state.critic)]
    assert turn(learner, acted_rollout(learner, **TROUBLED)) == 8  # 2 epochs of 4 minibatches
    for one, each in zip(before, (learner.state.actor, learner.state.critic), strict=True):
        assert torch.isfinite(each.flat).all()
        assert not torch.equal(one, each.flat)


def test_the_first_ratio_of_a_turn_is_1_although_older_weights_acted() -> None:
    learner = learner_of("appo")
    experience = acted_rollout(learner, **TROUBLED)
    moved(learner, 0.2, seed=9)
    (batch,) = sequences_of(learner, experience)
    assert (batch.reference - batch.behaviour).abs().max() > 0.01
    out = batch.of_learned(learner.state.actor(batch.obs))
    found = appo.head(learner.config, BOX)(out, appo.log_std(learner.state.actor), batch.action)[0]
    np.testing.assert_allclose(found, batch.reference, **CLOSE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rollout_steps": 100},
            "rollout_steps=100 cannot be divided into sequences of sequence_length=32 steps: .*25",
        ),
        ({"burn_in": 4}, "there is no setting 'burn_in'"),
        ({"start_state": "zero"}, "there is no setting 'start_state'"),
    ],
)
def test_sequences_that_a_rollout_does_not_have_are_refused(settings: dict[str, Any], message: str) -> None:
    for algorithm in ("ppo", "appo"):
        with pytest.raises(UsageError, match=message):
            make_learner_config(algorithm, network="gru", **settings)
