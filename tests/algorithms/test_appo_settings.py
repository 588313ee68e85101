"""Each setting of PPO and APPO does what its help text says: rates, target network, first weights, normalisers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from offbeat.algorithms.configs import AdaptiveRate
from offbeat.algorithms.torch import appo
from offbeat.algorithms.torch.differentiate import MOST_SPACES, ExplicitPass, Network
from offbeat.algorithms.torch.networks import MLP, Layer, make_orthogonal
from offbeat.errors import SpaceError, UsageError
from offbeat.types import EnvSpec, Layout, Leaf, RolloutBatch
from small_rollouts import BOX, STATE, make, moved, prepared, rollout, turn

CONTROL = AdaptiveRate(desired_kl=0.01, kl_factor=2.0, factor=1.5, lowest=1e-4, highest=1e-2)


# Rates


@pytest.mark.parametrize(
    ("kl", "rate", "wanted"),
    [
        (0.021, 1e-3, 1e-3 / 1.5),
        (0.019, 1e-3, 1e-3),
        (0.0051, 1e-3, 1e-3),
        (0.0049, 1e-3, 1e-3 * 1.5),
        (0.0, 1e-3, 1e-3),  # the first step of a turn: the policy is its reference
        (0.021, 1.2e-4, 1e-4),
        (0.0049, 9e-3, 1e-2),
    ],
)
def test_the_adaptive_rate_shrinks_after_large_steps_and_grows_after_small_ones_within_its_bounds(
    kl: float, rate: float, wanted: float
) -> None:
    assert appo.adapted_rate(CONTROL, rate, kl) == pytest.approx(wanted)


def test_turns_that_go_too_far_bring_the_rate_down_to_its_bound_and_others_up_to_it() -> None:
    for rate, desired, bound in ((1e-2, 1e-7, 1e-5), (1e-5, 10.0, 1e-2)):
        learner = make(learning_rate=rate, rate_control=AdaptiveRate(desired_kl=desired), epochs=10)
        for seed in range(3):
            turn(learner, rollout(learner, seed=seed, steps=16))
        assert learner.rates() == {"learning": pytest.approx(bound)}


def test_the_adaptive_rate_leads_from_far_off_to_the_divergence_that_is_desired() -> None:
    settled = []
    for rate in (1e-5, 1e-2):
        learner = make(learning_rate=rate, rate_control=AdaptiveRate(desired_kl=0.003), epochs=5)
        for seed in range(30):
            learner.drain()
            turn(learner, rollout(learner, seed=seed, steps=30))
        settled.append(learner.drain()["approx_kl"])
    assert max(settled) < 0.012
    assert min(settled) > 0.0007


def test_the_adapted_rate_is_used_at_once_and_goes_on_in_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first minibatch of a turn tells nothing, where the reference is the policy as the turn begins."""
    used = []
    monkeypatch.setattr(appo, "apply_jointly", lambda parts, rate, most: used.append(rate))
    monkeypatch.setattr(appo, "divergence", lambda *_: torch.tensor(1.0))  # far too large, always
    control = AdaptiveRate(factor=2.0, lowest=1e-3)
    for target_every, wanted in ((None, [8, 4, 2, 2, 1, 1]), (1, [4, 2, 1, 1, 1, 1])):
        settings = {"learning_rate": 8e-3, "rate_control": control, "epochs": 1, "minibatches": 3}
        learner = make("appo", target_every=target_every, **settings)
        used.clear()
        for _ in range(2):
            turn(learner, rollout(learner))
        assert used == pytest.approx([1e-3 * each for each in wanted])


def test_the_adapted_rate_survives_a_checkpoint() -> None:
    first, second = (make(rate_control=AdaptiveRate(desired_kl=1e-6), learning_rate=1e-2) for _ in range(2))
    experience = rollout(first)
    turn(first, experience)
    assert first.rates()["learning"] < 1e-2 == second.rates()["learning"]
    second.restore(first.arrays())
    assert second.rates() == first.rates()
    for learner in (first, second):
        turn(learner, experience, seed=6)
    for name, array in first.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[name])


def test_schedules_run_over_the_runs_steps_and_the_rate_stays_within_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(appo, "apply_jointly", lambda parts, rate, most: used.append(rate))
    for schedule, factor in (
        ("constant", lambda share: 1.0),
        ("linear", lambda share: 1 - share),
        ("cosine", lambda share: 0.5 * (1 + math.cos(math.pi * share))),
        (lambda progress: 2 + progress, lambda share: 2 + share),
    ):
        learner = make(schedule=schedule, learning_rate=1e-3, epochs=1, minibatches=3)
        for share in (0.0, 0.25, 0.9, 1.0, 1.2):
            used.clear()
            learner.progress = share
            turn(learner, rollout(learner))
            assert used == pytest.approx([1e-3 * factor(min(1.0, share))] * 3)
        assert learner.arrays()["progress"] == 1.2


def test_schedule_and_adaptive_rate_multiply() -> None:
    learner = make(schedule="linear", learning_rate=1e-3, rate_control=CONTROL)
    learner.rate_factor = 1.0 / 1.5
    learner.progress = 0.5
    assert learner.rates() == {"learning": pytest.approx(1e-3 / 1.5 / 2)}


def _used(learner: Any, monkeypatch: pytest.MonkeyPatch, seed: int = 5) -> list[Any]:
    """The settings that each update of a turn is made with."""
    used, update = [], appo.learn_minibatch

    def watched(state: Any, config: Any, *others: Any) -> Any:
        used.append(config)
        return update(state, config, *others)

    monkeypatch.setattr(appo, "learn_minibatch", watched)
    turn(learner, rollout(learner), seed=seed)
    monkeypatch.setattr(appo, "learn_minibatch", update)
    return used


def test_clip_and_entropy_follow_schedules_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: dict[str, Any] = {"clip_schedule": "linear", "entropy_schedule": lambda progress: 0.5 * (1 - progress)}
    learner = make(clip=0.2, entropy_coefficient=0.1, **schedules)
    for share in (0.0, 0.25, 0.75):
        learner.progress = share
        used = _used(learner, monkeypatch)
        assert [each.objective.clip for each in used] == pytest.approx([0.2 * (1 - share)] * 8)
        assert [each.objective.entropy_coefficient for each in used] == pytest.approx([0.05 * (1 - share)] * 8)
    with pytest.raises(UsageError, match=r"entropy_schedule='linear' needs entropy_coefficient, but .* is 0"):
        make(entropy_schedule="linear")


def test_a_turn_ends_where_the_policy_has_gone_further_than_target_kl_allows() -> None:
    free = make(learning_rate=1e-2, epochs=5)
    experience = rollout(free)
    assert turn(free, experience) == 20
    metrics = free.drain()
    assert "kl_stops" not in metrics
    held = make(learning_rate=1e-2, epochs=5, target_kl=metrics["approx_kl"] / 3)
    made = turn(held, experience)
    assert 0 < made < 20
    assert held.updates == made
    assert held.drain()["kl_stops"] == 1.0
    loose = make(learning_rate=1e-2, epochs=5, target_kl=1e3)
    assert turn(loose, experience) == 20
    assert loose.drain()["kl_stops"] == 0.0


def test_the_update_that_finds_the_policy_too_far_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Stable-Baselines3: more than 1.5 times target_kl ends the turn before the step."""
    found = iter([9.0, 0.014, 0.0151])  # the first is that of the reference itself, and tells nothing
    monkeypatch.setattr(appo, "divergence", lambda *_: torch.tensor(next(found)))
    learner = make(epochs=2, minibatches=4, target_kl=0.01)
    assert turn(learner, rollout(learner)) == learner.updates == 2
    assert learner.drain()["approx_kl"] == pytest.approx((9.0 + 0.014 + 0.0151) / 3, rel=1e-6)


def test_a_target_network_moves_where_target_kl_ends_a_turn_so_that_the_next_one_learns() -> None:
    """By the number of updates alone it would stay for ever where no turn may make any."""
    learner = make("appo", learning_rate=1e-2, epochs=5, target_every=1_000, tau=0.5, target_kl=1e-4)
    experience, state = rollout(learner), learner.state
    assert state.target is not None
    before = state.target.flat.clone()
    assert 0 < turn(learner, experience) < 20
    torch.testing.assert_close(state.target.flat, 0.5 * (before + state.actor.flat))
    made = [turn(learner, experience) for _ in range(20)]
    assert sum(count > 0 for count in made) >= 2


def test_explained_variance_is_that_of_the_values_before_the_turn() -> None:
    learner = moved(make())
    experience = rollout(learner, steps=30)
    whole = prepared(learner, experience)
    turn(learner, experience)
    wanted = 1 - np.var((whole.target - whole.value).numpy()) / np.var(whole.target.numpy())
    assert learner.drain()["explained_variance"] == pytest.approx(wanted, rel=1e-9)


# The target network


def test_the_target_moves_every_so_many_updates_by_its_share() -> None:
    learner = make("appo", target_every=3, tau=0.25, learning_rate=1e-2)
    state, experience = learner.state, rollout(learner)
    assert state.target is not None
    before = state.target.flat.clone()
    for count in (1, 1, 1, 3):
        assert turn(learner, experience, count) == count
        if learner.updates % 3:
            assert torch.equal(state.target.flat, before)
        else:
            moved = 0.75 * before + 0.25 * state.actor.flat
            torch.testing.assert_close(state.target.flat, moved, rtol=1e-12, atol=1e-14)
            before = state.target.flat.clone()
    assert make("appo").state.target is None
    assert make("ppo").state.target is None


class BatchNormed(nn.Sequential):
    """An actor with buffers of its own."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(nn.Linear(spec.observation_size, 8), nn.BatchNorm1d(8), nn.Linear(8, spec.action_size))


def test_the_buffers_of_an_own_actor_are_copied_to_the_target_when_it_moves() -> None:
    learner = make("appo", actor=BatchNormed, target_every=2, tau=0.5)
    experience = rollout(learner)
    turn(learner, experience, 2)
    arrays = learner.arrays()
    names = [name.removeprefix("actor/") for name in arrays if name.startswith("actor/1.")]
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked", "1.weight"} <= set(names)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        np.testing.assert_array_equal(arrays[f"target/{name}"], arrays[f"actor/{name}"])
    assert np.abs(arrays["actor/1.running_mean"]).max() > 0
    assert not np.array_equal(arrays["target/0.weight"], arrays["actor/0.weight"])


# First weights


@pytest.mark.parametrize("sizes", [(5, 16, 16, 2), (40, 16, 32, 3)])
def test_first_weights_are_orthogonal_and_biases_zero(sizes: tuple[int, ...]) -> None:
    mlp = MLP(sizes, activation="tanh", layer_norm=False, rng=np.random.default_rng(0))
    assert make_orthogonal(mlp, np.random.default_rng(1), last=0.01) is mlp
    for layer, gain in zip(mlp.layers, (math.sqrt(2), math.sqrt(2), 0.01), strict=True):
        assert isinstance(layer, Layer)
        rows, columns = layer.weight.shape
        product = layer.weight.T @ layer.weight if rows >= columns else layer.weight @ layer.weight.T
        wanted = gain**2 * torch.eye(min(rows, columns), dtype=torch.float64)
        torch.testing.assert_close(product.detach(), wanted, rtol=1e-10, atol=1e-12)
        assert (layer.bias == 0).all()
        assert layer.weight.is_contiguous()


def test_a_fresh_policy_makes_all_actions_alike_with_the_deviation_that_is_asked_for() -> None:
    obs = torch.randn(50, 5, dtype=torch.float64)
    plain = make(initial_log_std=-0.7).state
    assert plain.actor.module(obs).abs().max() < 0.1
    assert appo.log_std(plain.actor).tolist() == [-0.7, -0.7]
    mean, log_std = make(initial_log_std=-0.7, state_dependent_std=True).state.actor.module(obs).chunk(2, 1)
    assert mean.abs().max() < 0.1
    assert (log_std + 0.7).abs().max() < 0.1
    assert make().state.critic.module(obs, obs[:, :0]).abs().max() > 0.1  # the critic's last layer is not so small


def test_hidden_and_critic_hidden_set_layer_sizes_and_layer_norm_reaches_both() -> None:
    arrays = make(hidden=(8, 9), critic_hidden=(10,)).arrays()
    assert [arrays[f"actor/{k}/weight"].shape for k in range(3)] == [(5, 8), (8, 9), (9, 2)]
    assert [arrays[f"critic/{k}/weight"].shape for k in range(2)] == [(5, 10), (10, 1)]
    assert {"actor/0/norm/scale", "critic/0/norm/scale"} <= make(layer_norm=True).arrays().keys()


# Rewards, observations and privileged states


def scaled(learner: Any, experience: RolloutBatch) -> np.ndarray:
    return learner.steps_of(experience).reward.numpy()


def test_rewards_are_scaled_then_clipped() -> None:
    learner = make(reward_scale=3.0, reward_clip=2.0)
    experience = rollout(learner)
    reward = experience.columns["reward"]
    assert (np.abs(3.0 * reward) > 2.0).any()
    np.testing.assert_allclose(scaled(learner, experience), np.clip(3.0 * reward, -2.0, 2.0))


def test_rewards_are_divided_by_the_deviation_of_the_return_and_then_clipped() -> None:
    learner = make(normalise_rewards=True, reward_clip=0.8)
    experience = rollout(learner)
    np.testing.assert_allclose(scaled(learner, experience), np.clip(experience.columns["reward"], -0.8, 0.8))
    learner.observe_rewards(experience)
    assert learner.returns is not None
    assert learner.returns.moments.count == experience.valid.sum()
    factor = learner.returns.scale
    assert factor < 0.9
    np.testing.assert_allclose(scaled(learner, experience), np.clip(factor * experience.columns["reward"], -0.8, 0.8))


@pytest.mark.parametrize(("settings", "largest"), [({}, 10.0), ({"reward_clip": 25.0}, 25.0)])
def test_normalised_rewards_are_clipped_at_10_where_nothing_else_is_said(
    settings: dict[str, Any], largest: float
) -> None:
    learner, plain = make(normalise_rewards=True, **settings), make()
    experience = rollout(learner)
    experience.columns["reward"][0, 0] = 300.0
    assert scaled(learner, experience).max() == largest
    assert scaled(plain, experience).max() == 300.0


def test_observations_and_states_are_normalised_and_clipped_each_by_its_own_statistics() -> None:
    learner = make(spec=STATE, normalise_observations=True, observation_clip=1.5)
    assert learner.observations is not None
    assert learner.states is not None
    learner.observations.update(np.array([[0.0] * 5, [4.0] * 5]))  # mean 2, deviation 2
    learner.states.update(np.array([[1.0] * 3, [2.0] * 3]))  # mean 1.5, deviation 0.5
    experience = rollout(learner)
    steps = learner.steps_of(experience)
    for name in ("obs", "next_obs", "state", "next_state"):
        mean, deviation = (2.0, 2.0) if "obs" in name else (1.5, 0.5)
        wanted = np.clip((experience.columns[name] - mean) / deviation, -1.5, 1.5)
        np.testing.assert_allclose(getattr(steps, name), wanted, rtol=1e-7)


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_the_privileged_state_reaches_the_critic_and_not_the_actor(algorithm: str) -> None:
    learner = moved(make(algorithm, STATE))
    arrays = learner.arrays()
    assert arrays["actor/0/weight"].shape == (5, 16)
    assert arrays["critic/0/weight"].shape == (5 + 3, 16)
    experience = rollout(learner)
    before = prepared(learner, experience)
    experience.columns["state"][...] += 1.0
    experience.columns["next_state"][...] += 1.0
    after = prepared(learner, experience)
    assert (before.value != after.value).all()
    assert torch.equal(before.reference, after.reference)
    learner.state.actor.gradient.fill_(0.0)
    with torch.inference_mode():
        appo.update_critic(learner.state, learner.config, after)
    assert (learner.state.actor.gradient == 0).all()
    assert set(learner.weights()) == {f"actor/{layer}/{part}" for layer in range(3) for part in ("weight", "bias")} | {
        "actor/log_std"
    }


# What is refused, and what is kept


def test_images_are_refused_with_a_remedy() -> None:
    camera = Layout((Leaf(("camera",), "image", (8, 8, 3), "uint8"), Leaf(("speed",), "box", (2,), "float32")))
    for algorithm in ("ppo", "appo"):
        with pytest.raises(SpaceError, match=rf"camera.*{algorithm.upper()}.*FlattenObservation"):
            make(algorithm, EnvSpec("test", camera, (-1.0,), (1.0,), (1,)))


class Sampling(nn.Linear):
    def sample(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"actor": lambda spec: nn.Linear(5, 3)}, r"your actor gave \(2, 3\) for 2 rows: return 2 numbers per row"),
        ({"actor": lambda spec: nn.Linear(5, 2), "state_dependent_std": True}, "return 4 numbers per row"),
        (
            {"actor": lambda spec: Sampling(5, 2)},
            "sample, which PPO and APPO never call: return the policy's parameters",
        ),
        ({"critic": lambda spec: nn.Linear(5, 2)}, "your critic gave .* return one value per row"),
        ({"critic": lambda spec: nn.Identity()}, "your critic has no parameter"),
        ({"schedule": lambda progress: 1 / 0}, "ZeroDivisionError"),
    ],
)
def test_own_code_that_cannot_work_is_refused_in_words(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(**settings)


def test_own_modules_learn_and_repeat() -> None:
    def own(spec: EnvSpec) -> nn.Module:
        return nn.Sequential(nn.Linear(spec.observation_size, 8), nn.Dropout(0.3), nn.Linear(8, 1))

    learners = [make(critic=own, learning_rate=1e-2) for _ in range(2)]
    before, experience = learners[0].arrays(), rollout(learners[0])
    for learner in learners:
        torch.rand(3)  # whatever else the process draws
        turn(learner, experience)
    first, second = (learner.arrays() for learner in learners)
    assert all(np.array_equal(array, second[name]) for name, array in first.items())
    assert not np.array_equal(before["critic/0.weight"], first["critic/0.weight"])


def test_work_spaces_stay_few_when_the_number_of_rows_changes_all_the_time() -> None:
    mlp = MLP((5, 16, 2), activation="tanh", layer_norm=False, rng=np.random.default_rng(0))
    network, plain = Network(mlp.double()), Network(mlp.double(), explicit=False)
    kept = network._pass
    assert isinstance(kept, ExplicitPass)
    for rows in (*range(1, 60), *range(1, 60)):
        obs, gradient = torch.randn(rows, 5, dtype=torch.float64), torch.randn(rows, 2, dtype=torch.float64)
        outputs = []
        for each in (network, plain):
            out, tape = each.forward(obs)
            each.backward(tape, gradient)
            outputs.append(out.clone())
        torch.testing.assert_close(*outputs)
        torch.testing.assert_close(network.gradient, plain.gradient)
        assert len(kept._spaces) <= MOST_SPACES


def test_turns_of_rollouts_of_any_size_keep_few_work_spaces() -> None:
    learner = make(spec=BOX, epochs=1, minibatches=1)
    for steps in range(1, 40):
        turn(learner, rollout(learner, steps=steps, envs=1, ends=0.3, gaps=0.2))
    for network in (learner.state.actor, learner.state.critic):
        assert isinstance(network._pass, ExplicitPass)
        assert len(network._pass._spaces) <= MOST_SPACES
