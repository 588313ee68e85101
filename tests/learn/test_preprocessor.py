"""A user's own preprocessor of observations: what it is shown, what learns from it, and how it travels and is saved."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from driven_learner import Learner
from offbeat.errors import CheckpointError
from offbeat.learn.statistics import Preprocessor
from offbeat.learn.transfer import transfer
from offbeat.policies import make_policy
from offbeat.policies.preprocess import Preprocessed
from offbeat.settings import make_learner_config
from offbeat.types import Array, Chunk, RolloutBatch
from small_learners import batches, make, same, updated
from small_rollouts import BOX, rollout, turn
from specs import vector_spec

SETTINGS = {"hidden": (16, 16), "minibatches": 4, "epochs": 2}


class Centred:
    """Subtracts the mean of what it was shown, and remembers how many rows each call had."""

    def __init__(self) -> None:
        self.total, self.calls = np.zeros(5), np.zeros(0, np.int64)

    def update(self, observations: Array) -> None:
        self.total = self.total + observations.sum(0)
        self.calls = np.append(self.calls, len(observations))

    def __call__(self, observations: Array) -> Array:
        return observations - self.total / max(1, self.calls.sum())

    def arrays(self) -> dict[str, Array]:
        return {"total": self.total, "calls": self.calls}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.total, self.calls = np.array(arrays["total"]), np.array(arrays["calls"])


def chunk(value: float = 3.0, state: int = 0) -> Chunk:
    """Two rows, of which the second ends its episode."""
    rows = {"obs": np.full((2, 5), value), "next_obs": np.full((2, 5), value + 3.0), "reward": np.ones(2)}
    ends = {"terminated": np.array([0.0, 1.0]), "truncated": np.zeros(2), "env": np.arange(2), "episode": np.zeros(2)}
    return Chunk({**rows, **ends, "state": np.ones((2, state)), "next_state": np.ones((2, state))})


def shown(learner: Learner) -> Centred:
    assert isinstance(learner.observations, Centred)
    return learner.observations


def test_it_is_shown_each_fresh_observation_once_and_final_ones_too() -> None:
    own: Preprocessor = Centred()
    learner = make(preprocessor=own)
    before = learner.revision
    learner.observe(chunk())
    assert learner.observations is own
    assert shown(learner).calls.tolist() == [3]
    np.testing.assert_array_equal(shown(learner).total, [3.0 + 3.0 + 6.0] * 5)
    assert learner.revision != before, "policies need the new state"
    updated(learner)
    assert shown(learner).calls.tolist() == [3], "drawn rows are not fresh"


def test_networks_learn_from_what_it_gives() -> None:
    learner = make(preprocessor=Centred())
    learner.observe(chunk())  # mean 4
    (batch, noise), *_ = batches(1)
    learner.update_once(batch, noise)
    by_hand = updated(make(), obs=batch.obs - 4.0, next_obs=batch.next_obs - 4.0)
    assert not np.array_equal(by_hand.state.critic.flat, updated(make()).state.critic.flat)
    np.testing.assert_array_equal(learner.state.critic.flat, by_hand.state.critic.flat)
    np.testing.assert_array_equal(learner.state.actor.flat, by_hand.state.actor.flat)


def test_rollouts_are_learned_from_as_it_gives_them() -> None:
    config = make_learner_config("ppo", **SETTINGS)
    own, plain = (
        Learner("ppo", config, BOX, rng=np.random.default_rng(1), precision="float64", preprocessor=each)
        for each in (Centred(), None)
    )
    own.observe_observations(chunk())  # mean 4
    experience = rollout(plain)
    assert turn(own, experience) == 8
    moved = {name: experience.columns[name] - 4.0 for name in ("obs", "next_obs")}
    turn(plain, RolloutBatch({**experience.columns, **moved}, experience.valid))
    np.testing.assert_array_equal(own.state.actor.flat, plain.state.actor.flat)
    np.testing.assert_array_equal(own.state.critic.flat, plain.state.critic.flat)


def test_it_takes_the_place_of_the_normaliser_of_observations_and_leaves_privileged_states_alone() -> None:
    spec = vector_spec(5, 2, state=3)
    for normalise in (False, True):
        learner = make(spec, preprocessor=Centred(), normalise_observations=normalise)
        learner.observe(chunk(state=3))
        assert shown(learner).calls.tolist() == [3]
        assert (learner.states is not None) == normalise
        if learner.states is not None:
            assert learner.states.count == 3


@pytest.mark.parametrize("acting", ["numpy", "torch"])
def test_its_state_goes_with_the_weights_to_the_policy_that_acts(acting: str) -> None:
    learner = make(preprocessor=Centred(), precision="float32")
    learner.observe(chunk())
    weights = learner.weights()
    assert {"preprocessor/total", "preprocessor/calls"} <= weights.keys()
    assert not any(name.startswith("normaliser/") for name in weights)
    plain = make_policy(learner.backend.policy_description(), acting=acting)
    policy = Preprocessed(make_policy(learner.backend.policy_description(), acting=acting), Centred())
    for each in (plain, policy):
        each.load(weights)
    obs = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    acted, _, _ = policy.act(obs, policy.initial_carry(4), None)
    wanted, _, _ = plain.act(obs - np.float32(4.0), plain.initial_carry(4), None)
    np.testing.assert_allclose(acted, wanted, rtol=0, atol=1e-6)
    learner.observe(chunk(100.0))
    np.testing.assert_array_equal(weights["preprocessor/total"], [12.0] * 5)


def test_its_state_is_saved_also_where_its_shape_has_grown() -> None:
    straight, first, resumed = (make(preprocessor=Centred()) for _ in range(3))
    for learner in (straight, first):
        for value in (1.0, 5.0):
            learner.observe(chunk(value))
        updated(learner, 2)
    resumed.restore(first.arrays())
    assert shown(resumed).calls.tolist() == [3, 3]
    assert resumed.has_statistics
    for learner in (straight, resumed):
        learner.observe(chunk(7.0))
        updated(learner, 1)
    assert same(straight, resumed)


def test_a_checkpoint_with_a_preprocessor_does_not_fit_a_learner_without() -> None:
    with pytest.raises(CheckpointError, match=r"observations/calls is \(0,\) there and missing here"):
        make().restore(make(preprocessor=Centred()).arrays())


def test_a_new_learner_may_begin_with_its_state() -> None:
    first, second = make(preprocessor=Centred()), make(preprocessor=Centred())
    first.observe(chunk())
    copied, left = transfer(updated(first, 2).arrays(), second, "actor")
    assert "statistics of observations" in copied
    assert left == []
    np.testing.assert_array_equal(shown(second).total, shown(first).total)
