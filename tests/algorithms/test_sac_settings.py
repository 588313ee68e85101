"""Each setting of SAC does what its help text says."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from driven_learner import Learner
from offbeat.algorithms.configs import Fixed, Learned
from offbeat.algorithms.torch import sac
from offbeat.algorithms.torch.distributions import squash
from offbeat.algorithms.torch.optimise import Adam, apply
from offbeat.errors import SpaceError, UsageError
from offbeat.settings import make_learner_config
from offbeat.types import Chunk, Layout, Leaf
from small_learners import SPEC, batches, make, same, updated
from specs import vector_spec


def test_update_is_repeatable() -> None:
    assert same(updated(make(), 3), updated(make(), 3))


def test_tau_is_the_share_of_the_critic_that_the_target_takes_over() -> None:
    learner = make(tau=0.25)
    before = learner.state.target.flat.clone()
    updated(learner)
    expected = 0.75 * before + 0.25 * learner.state.critic.flat
    torch.testing.assert_close(learner.state.target.flat, expected, rtol=1e-12, atol=1e-14)


def test_target_every_moves_the_target_only_then() -> None:
    learner = make(target_every=3)
    first = learner.state.target.flat.clone()
    updated(learner, 2)
    assert torch.equal(learner.state.target.flat, first)
    updated(learner, 1)
    assert not torch.equal(learner.state.target.flat, first)


@pytest.mark.parametrize("critics", [1, 2, 5])
def test_critics_are_stacked(critics: int) -> None:
    learner = updated(make(critics=critics))
    assert learner.arrays()["critic/0/weight"].shape == (critics, 7, 16)


def test_targets_take_the_minimum_over_critics() -> None:
    learner = make(critics=3, gamma=0.9, temperature=Fixed(0.0), critic_learning_rate=0.0)
    (batch, noise), *_ = batches(1)
    state = learner.state
    with torch.no_grad():
        next_obs = torch.from_numpy(batch.next_obs)
        action, _, _ = sac.sample(learner.config, state.actor, next_obs, torch.from_numpy(noise[1]))
        next_q = state.target.module(next_obs, torch.zeros(32, 0), action).amin(0)
        target = torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount) * next_q
        q = state.critic.module(torch.from_numpy(batch.obs), torch.zeros(32, 0), torch.from_numpy(batch.action))
        loss = sum(0.5 * ((q[e] - target) ** 2).mean() for e in range(3))
    learner.update_once(batch, noise)
    assert learner.drain()["critic_loss"] == pytest.approx(float(loss), rel=1e-12)


def test_hidden_and_critic_hidden_set_layer_sizes() -> None:
    arrays = make(hidden=(8, 9), critic_hidden=(10, 11, 12)).arrays()
    assert [arrays[f"actor/{k}/weight"].shape for k in range(3)] == [(5, 8), (8, 9), (9, 4)]
    assert [arrays[f"critic/{k}/weight"].shape for k in range(4)] == [(2, 7, 10), (2, 10, 11), (2, 11, 12), (2, 12, 1)]
    assert make(hidden=(8,)).arrays()["critic/0/weight"].shape == (2, 7, 8)


def test_layer_norm_and_activation_reach_actor_and_critics() -> None:
    assert "critic/0/norm/scale" in make(layer_norm=True).arrays()
    assert "actor/2/norm/scale" not in make(layer_norm=True).arrays()  # never on the output
    assert not same(updated(make(activation="tanh")), updated(make(activation="relu")))
    trained = updated(make(layer_norm=True), 2).arrays()
    assert not np.array_equal(trained["critic/0/norm/scale"], np.ones((2, 16)))


def test_fixed_temperature_stays_and_learned_temperature_follows_the_entropy() -> None:
    assert float(updated(make(temperature=Fixed(0.3)), 3).state.log_temperature.exp()) == pytest.approx(0.3)
    high = updated(make(temperature=Learned(0.5, target_entropy=50.0)), 3)
    low = updated(make(temperature=Learned(0.5, target_entropy=-50.0)), 3)
    assert float(low.state.log_temperature.exp()) < 0.5 < float(high.state.log_temperature.exp())


def test_target_entropy_is_minus_the_action_size_by_default() -> None:
    default = updated(make(temperature=Learned(0.5)), 3)
    assert same(default, updated(make(temperature=Learned(0.5, target_entropy=-2.0)), 3))


@pytest.mark.parametrize("group", ["actor", "critic", "temperature"])
def test_each_group_has_its_own_learning_rate(group: str) -> None:
    learner = make(**{f"{group}_learning_rate": 0.0})
    flats = {
        "actor": learner.state.actor.flat,
        "critic": learner.state.critic.flat,
        "temperature": learner.state.log_temperature,
    }
    before = {name: flat.clone() for name, flat in flats.items()}
    updated(learner, 2)
    assert {name for name, flat in flats.items() if torch.equal(flat, before[name])} == {group}


def test_schedules_scale_each_groups_rate_over_the_planned_updates() -> None:
    learner = make(
        planned=4,
        actor_schedule="linear",
        critic_schedule="cosine",
        temperature_schedule=lambda progress: 1.0 + progress,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        temperature_learning_rate=1e-3,
    )
    seen = []
    for batch, noise in batches(5):
        seen.append(learner.rates())
        learner.update_once(batch, noise)
    np.testing.assert_allclose([rates["actor"] for rates in seen], [1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0.0], atol=1e-12)
    cosine = [0.5e-3 * (1 + math.cos(math.pi * k / 4)) for k in range(5)]
    np.testing.assert_allclose([rates["critic"] for rates in seen], cosine, atol=1e-12)
    np.testing.assert_allclose([rates["temperature"] for rates in seen], [1e-3 * (1 + k / 4) for k in range(5)])


def test_a_schedule_without_a_planned_end_is_refused() -> None:
    with pytest.raises(UsageError, match="total_updates"):
        make(actor_schedule="linear").check_schedules()


def test_the_schedules_rate_reaches_the_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    monkeypatch.setattr(Adam, "step", lambda self, flat, gradient, rate: rates.append(rate))
    learner = make(planned=2, critic_schedule="linear", critic_learning_rate=1.0)
    updated(learner, 2)
    assert rates[0::3] == [1.0, 0.5]


def test_max_grad_norm_limits_each_networks_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = []
    monkeypatch.setattr(Adam, "step", lambda self, flat, gradient, rate: norms.append(float(gradient.norm())))
    updated(make(temperature=Fixed(0.1)))
    free = norms.copy()
    norms.clear()
    updated(make(temperature=Fixed(0.1), max_grad_norm=1e-2))
    assert min(free) > 1e-2
    np.testing.assert_allclose(norms, 1e-2, rtol=1e-3)


def test_apply_leaves_a_gradient_below_the_limit_alone() -> None:
    flat = torch.zeros(3, dtype=torch.float64)
    clipped, plain = Adam(flat), Adam(flat)
    gradient = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    apply(flat, gradient, clipped, 0.1, max_norm=10.0)
    apply(flat.clone(), gradient, plain, 0.1)
    assert torch.equal(clipped.mean, plain.mean)


def test_adam_equals_torchs_own() -> None:
    rng = torch.Generator().manual_seed(0)
    flat = torch.randn(20, generator=rng, dtype=torch.float64)
    theirs = flat.clone().requires_grad_(True)
    optimiser, adam = torch.optim.Adam([theirs], lr=1e-2), Adam(flat)
    for _ in range(5):
        gradient = torch.randn(20, generator=rng, dtype=torch.float64)
        theirs.grad = gradient.clone()
        optimiser.step()
        adam.step(flat, gradient, 1e-2)
    torch.testing.assert_close(flat, theirs.detach(), rtol=1e-12, atol=1e-14)


def test_reward_scale_multiplies_every_reward() -> None:
    (batch, _), *_ = batches(1)
    assert same(updated(make(reward_scale=3.0)), updated(make(), reward=3.0 * batch.reward))


def test_rewards_are_divided_by_the_deviation_of_the_return() -> None:
    learner = make(normalise_rewards=True)
    assert learner.returns is not None
    learner.returns.moments.update(np.array([[0.0], [8.0]]))  # deviation 4
    (batch, noise), *_ = batches(1)
    learner.update_once(batch, noise)
    plain = updated(make(), reward=batch.reward * (1 / np.sqrt(16 + 1e-8)))
    np.testing.assert_allclose(learner.state.critic.flat, plain.state.critic.flat, rtol=1e-12)


def test_observations_are_normalised_and_clipped_for_both_networks() -> None:
    learner = make(normalise_observations=True, observation_clip=1.5)
    assert learner.observations is not None
    learner.observations.update(np.array([[0.0] * 5, [4.0] * 5]))  # mean 2, deviation 2
    (batch, noise), *_ = batches(1)
    learner.update_once(batch, noise)
    by_hand = [np.clip((each - 2.0) / np.sqrt(4 + 1e-8), -1.5, 1.5) for each in (batch.obs, batch.next_obs)]
    plain = updated(make(), obs=by_hand[0], next_obs=by_hand[1])
    np.testing.assert_allclose(learner.state.critic.flat, plain.state.critic.flat, rtol=1e-10)
    np.testing.assert_allclose(learner.state.actor.flat, plain.state.actor.flat, rtol=1e-10)


def test_only_the_critic_sees_the_privileged_state_and_it_has_its_own_normaliser() -> None:
    spec = vector_spec(5, 2, state=3)
    learner = make(spec, normalise_observations=True)
    arrays = learner.arrays()
    assert arrays["actor/0/weight"].shape == (5, 16)
    assert arrays["critic/0/weight"].shape == (2, 5 + 3 + 2, 16)
    assert learner.states is not None
    assert learner.states.mean.shape == (3,)
    batch = batches(1, spec)[0][0]
    assert not same(updated(make(spec)), updated(make(spec), state=batch.state + 1.0))
    assert "normaliser/mean" in learner.weights()
    assert learner.weights()["normaliser/mean"].shape == (5,)


def test_precision_is_the_learners_dtype() -> None:
    assert make(precision="float64").state.actor.flat.dtype == torch.float64
    assert make(precision="float32").state.actor.flat.dtype == torch.float32


def test_a_device_that_is_not_there_is_refused() -> None:
    for device in ("cuda", "teapot"):
        if device == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(UsageError, match=device):
            Learner("sac", make_learner_config("sac"), SPEC, rng=np.random.default_rng(0), device=device)


def test_log_probability_is_exact_for_actions_near_the_bounds() -> None:
    """Against the density of tanh(u) in extended precision; a naive log(1 - a^2) is infinite here."""
    noise = torch.tensor([[0.5]], dtype=torch.float64)
    out = torch.tensor([[12.0, 0.0]], dtype=torch.float64)  # mean and log standard deviation
    _, log_prob, _ = squash(out, noise, (-20.0, 2.0))
    u = 12.5
    exact = -0.125 - 0.5 * math.log(2 * math.pi) - (math.log(4.0) - 2 * u - 2 * math.log1p(math.exp(-2 * u)))
    assert float(log_prob) == pytest.approx(exact, rel=1e-12)


def test_images_are_refused_with_a_remedy() -> None:
    layout = Layout((Leaf(("camera",), "image", (8, 8, 3), "uint8"), Leaf(("speed",), "box", (2,), "float32")))
    with pytest.raises(SpaceError, match=r"camera.*FlattenObservation"):
        make(dataclasses.replace(SPEC, layout=layout))


def test_restore_says_which_arrays_do_not_fit() -> None:
    from offbeat.errors import CheckpointError

    with pytest.raises(CheckpointError, match=r"actor/0/weight is \(5, 16\) there and \(5, 32\) here"):
        make(hidden=(32, 32)).restore(make().arrays())


def test_metrics_are_means_since_the_last_drain() -> None:
    learner = make()
    losses = []
    for batch, noise in batches(3):
        learner.update_once(batch, noise)
        losses.append(learner.pending()["critic_loss"][0])
    expected = losses[-1] / 3
    assert learner.drain()["critic_loss"] == pytest.approx(expected)
    assert learner.drain() == {}


@pytest.mark.parametrize("bounds", [(1.0, 2.0), (-20.0, -3.0)])
def test_log_std_bounds_reach_the_learners_policy(bounds: tuple[float, float]) -> None:
    learner = make(log_std_min=bounds[0], log_std_max=bounds[1])
    obs, noise = torch.from_numpy(batches(1)[0][0].obs), torch.zeros(32, 2, dtype=torch.float64)
    action, log_prob, _ = sac.sample(learner.config, learner.state.actor, obs, noise)
    # A fresh actor's log-deviation is near 0, so that one bound or the other is what counts.
    bound = bounds[0] if bounds[0] > 0 else bounds[1]
    density = -2 * (bound + 0.5 * math.log(2 * math.pi)) - torch.log(1 - action.square()).sum(1)
    torch.testing.assert_close(log_prob, density, rtol=1e-9, atol=1e-9)


def test_final_states_count_in_the_states_normaliser() -> None:
    spec = vector_spec(5, 2, state=3)
    learner = make(spec, normalise_observations=True)
    columns = {"obs": np.zeros((2, 5)), "next_obs": np.ones((2, 5)), "state": np.zeros((2, 3))}
    ends = {"terminated": np.array([0.0, 1.0]), "truncated": np.zeros(2), "next_state": np.full((2, 3), 6.0)}
    learner.observe(Chunk({**columns, **ends}))
    assert learner.states is not None
    np.testing.assert_allclose(learner.states.mean, 6.0 / 3)
