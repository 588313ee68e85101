"""The replay buffer, exploration, spaces, environments and modules of the metarl interface."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from metarl_parts import Always, Line, Reach
from offbeat.compat.metarl import (
    AddGaussianNoise,
    AddOrnsteinUhlenbeckNoise,
    EnvSpec,
    EpsilonGreedyPolicy,
    MetaRLEnv,
    PathBuffer,
    log_performance,
    normalize,
    set_seed,
    tabular,
)
from offbeat.compat.metarl.experiment.deterministic import generator
from offbeat.compat.metarl.np.policies import Policy
from offbeat.compat.metarl.torch.modules import MLPModule
from offbeat.compat.metarl.torch.policies import DeterministicMLPPolicy, DiscreteQfDerivedPolicy
from offbeat.compat.metarl.torch.q_functions import ContinuousMLPQFunction, DiscreteMLPQFunction
from offbeat.errors import SpaceError, UsageError


def numbered(first: int, length: int) -> dict[str, Any]:
    numbers = np.arange(first, first + length)[:, None]
    return {"observations": numbers.astype(np.float32).repeat(2, 1), "rewards": numbers * 1.0, "terminals": numbers < 0}


# PathBuffer


def test_the_buffer_keeps_the_newest_transitions() -> None:
    buffer = PathBuffer(capacity_in_transitions=10)
    assert buffer.n_transitions_stored == 0
    for first, length in ((0, 4), (4, 4), (8, 5)):
        buffer.add_path(numbered(first, length))
    assert buffer.n_transitions_stored == 10
    seen = buffer.sample_transitions(1_000)
    assert set(seen["rewards"].ravel()) == set(range(3, 13))
    assert np.array_equal(seen["observations"][:, 1:], seen["rewards"])
    assert (seen["terminals"].dtype, seen["rewards"].dtype, seen["rewards"].shape) == (bool, float, (1_000, 1))


def test_transitions_are_drawn_equally_often() -> None:
    set_seed(0)
    buffer = PathBuffer(8)
    buffer.add_path(numbered(0, 8))
    counts = np.bincount(buffer.sample_transitions(8_000)["rewards"].ravel().astype(int))
    assert (np.abs(counts - 1_000) < 5 * np.sqrt(1_000)).all()


def test_only_whole_paths_are_sampled_as_paths() -> None:
    buffer = PathBuffer(10)
    for first, length in ((0, 4), (4, 4), (8, 5)):
        buffer.add_path(numbered(first, length))
    starts = {int(buffer.sample_path()["rewards"][0, 0]) for _ in range(50)}
    assert starts == {4, 8}  # the first path has lost its first transitions
    assert {len(buffer.sample_path()["rewards"]) for _ in range(50)} == {4, 5}


def test_a_cleared_buffer_takes_other_keys() -> None:
    buffer = PathBuffer(10)
    buffer.add_path(numbered(0, 4))
    buffer.clear()
    assert buffer.n_transitions_stored == 0
    buffer.add_path({"other": np.ones((3, 1))})
    assert list(buffer.sample_transitions(2)) == ["other"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ({}, "nothing in it"),
        ({"a": np.zeros((0, 1))}, "nothing in it"),
        ({"a": np.zeros((2, 1)), "b": np.zeros((3, 1))}, "differ in length"),
        ({"a": np.zeros(3)}, r"path\[a\] has shape \(3,\)"),
        ({"a": np.zeros((11, 1))}, "does not fit into capacity_in_transitions=10"),
        ({"a": np.zeros((2, 1), complex)}, "complex128"),
        ({"path_number": np.zeros((2, 1))}, "path_number"),
    ],
)
def test_a_path_that_does_not_fit_is_refused_and_changes_nothing(path: dict[str, Any], words: str) -> None:
    buffer = PathBuffer(10)
    with pytest.raises(ValueError, match=words):
        buffer.add_path(path)
    assert buffer.n_transitions_stored == 0


def test_later_paths_have_the_keys_and_shapes_of_the_first() -> None:
    buffer = PathBuffer(10)
    buffer.add_path(numbered(0, 2))
    with pytest.raises(UsageError, match="'rewards'"):
        buffer.add_path({key: value for key, value in numbered(0, 2).items() if key != "rewards"})
    with pytest.raises(UsageError, match="observations"):
        buffer.add_path({**numbered(0, 2), "observations": np.zeros((2, 3))})


def test_an_empty_buffer_and_one_without_room_are_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        PathBuffer(3).sample_transitions(1)
    with pytest.raises(UsageError, match="capacity_in_transitions=0"):
        PathBuffer(0)


# Exploration


def test_epsilon_falls_linearly_over_its_share_of_all_steps() -> None:
    spec = MetaRLEnv(Line()).spec
    policy = EpsilonGreedyPolicy(
        spec, Always(1), total_timesteps=100, max_epsilon=0.8, min_epsilon=0.2, decay_ratio=0.5
    )
    found = []
    for _ in range(4):
        found.append(policy.epsilon)
        policy.get_actions(np.zeros((25, 2)))
    assert found == pytest.approx([0.8, 0.5, 0.2, 0.2])


def test_epsilon_is_the_probability_of_a_random_action() -> None:
    set_seed(1)
    spec = MetaRLEnv(Line()).spec
    policy = EpsilonGreedyPolicy(spec, Always(1), total_timesteps=1, max_epsilon=0.5, min_epsilon=0.5)
    actions, _ = policy.get_actions(np.zeros((4_000, 2)))
    assert actions.mean() == pytest.approx(0.75, abs=0.03)  # half of the random ones are 1, too
    greedy = EpsilonGreedyPolicy(spec, Always(1), total_timesteps=1, max_epsilon=0.0, min_epsilon=0.0)
    assert greedy.get_action(np.zeros(2)) == (1, {})


def test_actions_are_random_only_until_epsilon_has_fallen() -> None:
    set_seed(1)
    spec = MetaRLEnv(Line()).spec
    settings = {"total_timesteps": 400, "max_epsilon": 1.0, "min_epsilon": 0.0, "decay_ratio": 0.5}
    one, many = (EpsilonGreedyPolicy(spec, Always(1), **settings) for _ in range(2))
    singly = [int(one.get_action(np.zeros(2))[0]) for _ in range(400)]
    together = np.concatenate([many.get_actions(np.zeros((20, 2)))[0] for _ in range(20)])
    for actions in (singly, together):
        assert 0 in actions[:100]
        assert set(actions[200:]) == {1}


def test_gaussian_noise_has_sigma_in_the_units_of_the_action_space() -> None:
    set_seed(1)
    policy = AddGaussianNoise(MetaRLEnv(Reach()).spec, Always([0.25]), max_sigma=0.4, min_sigma=0.2, decay_period=10)
    actions, _ = policy.get_actions(np.zeros((5_000, 3)))
    assert actions.mean() == pytest.approx(0.25, abs=0.02)
    assert actions.std() == pytest.approx(0.4, abs=0.02)
    for _ in range(5):
        policy.reset([True])
    assert policy.sigma == pytest.approx(0.3)
    policy.reset([False, False])
    assert policy.sigma == pytest.approx(0.3)  # no path has begun
    policy.reset([True] * 20)
    assert policy.sigma == pytest.approx(0.2)
    assert policy.get_actions(np.zeros((5_000, 3)))[0].std() == pytest.approx(0.2, abs=0.01)


def test_noisy_actions_are_clipped_to_the_action_space() -> None:
    policy = AddGaussianNoise(MetaRLEnv(Reach()).spec, Always([1.9]), max_sigma=5.0)
    actions, _ = policy.get_actions(np.zeros((100, 3)))
    assert (actions.min(), actions.max()) == (-2.0, 2.0)


def test_ornstein_uhlenbeck_noise_follows_its_equation() -> None:
    set_seed(5)
    settings = {"mu": 0.1, "sigma": 0.2, "theta": 0.5, "dt": 0.04, "x0": 0.3}
    policy = AddOrnsteinUhlenbeckNoise(MetaRLEnv(Reach()).spec, Always([0.5]), **settings)
    set_seed(5)
    rng = generator("exploration")
    x = np.full((2, 1), 0.3)
    for _ in range(20):
        normal = rng.standard_normal((2, 1), np.float32)
        x = x + 0.5 * (0.1 - x) * 0.04 + 0.2 * np.sqrt(0.04) * normal
        actions, _ = policy.get_actions(np.zeros((2, 3)))
        assert actions == pytest.approx(0.5 + x, abs=1e-5)


def test_ornstein_uhlenbeck_noise_starts_again_only_where_an_episode_begins() -> None:
    policy = AddOrnsteinUhlenbeckNoise(MetaRLEnv(Reach()).spec, Always([0.0]), sigma=0.0, theta=0.0, x0=0.7)
    drifting = AddOrnsteinUhlenbeckNoise(MetaRLEnv(Reach()).spec, Always([0.0]), sigma=0.5, dt=1.0)
    assert policy.get_action(np.zeros(3))[0] == pytest.approx([0.7])
    before = [drifting.get_actions(np.zeros((2, 3)))[0] for _ in range(20)][-1]
    drifting.reset([True, False])
    after = drifting._disturbed._memory
    assert after[0] == 0.0
    assert after[1] * 2.0 == pytest.approx(before[1])


def test_noise_needs_a_box_and_epsilon_a_probability() -> None:
    spec = MetaRLEnv(Line()).spec
    for kind in (AddGaussianNoise, AddOrnsteinUhlenbeckNoise):
        with pytest.raises(UsageError, match="Discrete"):
            kind(spec, Always(1))
    with pytest.raises(UsageError, match="max_epsilon=2"):
        EpsilonGreedyPolicy(spec, Always(1), total_timesteps=10, max_epsilon=2)
    with pytest.raises(UsageError, match="decay_period=0"):
        AddGaussianNoise(MetaRLEnv(Reach()).spec, Always([0.0]), decay_period=0)
    with pytest.raises(UsageError, match="dt=0"):
        AddOrnsteinUhlenbeckNoise(MetaRLEnv(Reach()).spec, Always([0.0]), dt=0)


@pytest.mark.parametrize("kind", ["epsilon", "gaussian", "ornstein_uhlenbeck"])
def test_one_action_asks_the_policy_for_one_and_many_for_many(kind: str) -> None:
    class Told(Always):
        asked: list[Any] = []  # noqa: RUF012

        def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
            self.asked.append(observation.tolist())
            return self.action, {}

        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            self.asked.append(observations.tolist())
            return np.stack([np.asarray(self.action)] * len(observations)), {}

    Told.asked = []
    reach, line = MetaRLEnv(Reach()).spec, MetaRLEnv(Line()).spec
    policy = {
        "epsilon": lambda: EpsilonGreedyPolicy(line, Told(1), total_timesteps=10),
        "gaussian": lambda: AddGaussianNoise(reach, Told([0.0])),
        "ornstein_uhlenbeck": lambda: AddOrnsteinUhlenbeckNoise(reach, Told([0.0])),
    }[kind]()
    one, _ = policy.get_action(np.arange(3))
    many, _ = policy.get_actions([np.ones(3)] * 4)
    assert Told.asked == [[0, 1, 2], [[1, 1, 1]] * 4]
    assert np.shape(many) == (4, *np.shape(one))


def test_parameters_and_resets_reach_the_policy_inside() -> None:
    spec = MetaRLEnv(Reach()).spec
    inner = DeterministicMLPPolicy(spec, hidden_sizes=(4,))
    policy = AddGaussianNoise(spec, inner)
    other = AddGaussianNoise(spec, DeterministicMLPPolicy(spec, hidden_sizes=(4,)))
    policy.set_param_values(other.get_param_values())
    observations = np.ones((2, 3))
    assert np.array_equal(inner.get_actions(observations)[0], other.policy.get_actions(observations)[0])
    recorded = Always([0.0])
    AddOrnsteinUhlenbeckNoise(spec, recorded).reset([True, False])
    assert recorded.resets == [[True, False]]


# Spaces and environments


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(-1, 1, (2, 3)), 6),
        (spaces.Discrete(4, start=2), 4),
        (spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(0, 1, (2,))}), 5),
        (spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3))), 5),
    ],
)
def test_spaces_flatten_and_unflatten(space: Any, size: int) -> None:
    found = EnvSpec(space, spaces.Discrete(2)).observation_space
    assert found == space
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    flat = found.flatten_n(samples)
    assert (found.flat_dim, flat.shape) == (size, (3, size))
    assert np.array_equal(found.flatten(samples[0]), flat[0])
    assert np.array_equal(found.flatten_n(found.unflatten_n(flat)), flat)


def test_a_metarl_env_has_an_env_spec() -> None:
    env = MetaRLEnv(env_name="CartPole-v1")
    assert (env.spec.observation_space.flat_dim, env.spec.action_space.flat_dim) == (4, 2)
    assert env.spec == EnvSpec(env.observation_space, env.action_space)
    assert env.spec.input_space == env.action_space
    observation, _ = env.reset(seed=0)
    assert env.spec.observation_space.flatten(observation).shape == (4,)
    with pytest.raises(UsageError, match="exactly one"):
        MetaRLEnv()
    with pytest.raises(UsageError, match="is_image"):
        MetaRLEnv(Line(), is_image=True)


def test_normalize_scales_actions_and_rewards() -> None:
    env = normalize(Reach(), scale_reward=10.0, expected_action_scale=4.0)
    env.reset()
    assert (env.action_space.low, env.action_space.high) == (-4.0, 4.0)
    rewards = [env.step(np.array([action]))[1] for action in (2.0, 4.0, 100.0)]
    assert rewards == pytest.approx([0.0, -10.0, -10.0])


def test_images_are_refused() -> None:
    class Pixels(Line):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (4, 4, 3), np.uint8)  # type: ignore[assignment]

    from metarl_parts import recording

    with pytest.raises(SpaceError, match="image"):
        recording(env=Pixels())


def test_environments_with_mujoco_can_be_copied() -> None:
    pytest.importorskip("mujoco")
    from offbeat.compat.metarl.sampler.recorded_env import RecordedVector

    recorded = RecordedVector(MetaRLEnv(gymnasium.make("Hopper-v5")), 2, seed=0, purpose="train", limit=None)
    recorded.vector.reset()
    step = recorded.vector.step(np.zeros((2, 3), np.float32))
    assert not np.array_equal(step.next.vector[0], step.next.vector[1])
    assert "x_position" in recorded.infos()[0]


# Modules


def test_the_mlp_has_the_layers_that_its_arguments_say() -> None:
    module = MLPModule(
        3,
        2,
        (4, 5),
        hidden_nonlinearity=torch.nn.Tanh,
        hidden_w_init=torch.nn.init.ones_,
        hidden_b_init=torch.nn.init.ones_,
        output_nonlinearity=torch.sigmoid,
        output_w_init=torch.nn.init.zeros_,
        output_b_init=torch.nn.init.ones_,
    )
    hidden = torch.tanh(torch.full((1, 4), 1.0))
    hidden = torch.tanh(hidden.sum(1, keepdim=True) + 1.0).expand(1, 5)
    assert torch.allclose(module.layers[:4](torch.zeros(1, 3)), hidden)
    assert torch.allclose(module(torch.zeros(1, 3)), torch.sigmoid(torch.ones(1, 2)))
    normalised = MLPModule(3, 2, (4,), layer_normalization=True)
    assert torch.allclose(normalised(torch.full((1, 3), 7.0)), normalised(torch.zeros(1, 3)))
    assert MLPModule(3, 2, (), hidden_nonlinearity=None).output_dim == 2


def test_policies_and_q_functions_have_their_shapes() -> None:
    reach, line = MetaRLEnv(Reach()).spec, MetaRLEnv(Line()).spec
    policy = DeterministicMLPPolicy(reach, hidden_sizes=(4,))
    assert policy.get_actions(np.zeros((5, 3)))[0].shape == (5, 1)
    assert policy.get_action(np.zeros(3))[0].shape == (1,)
    assert ContinuousMLPQFunction(reach, hidden_sizes=(4,))(torch.zeros(5, 3), torch.zeros(5, 1)).shape == (5, 1)
    qf = DiscreteMLPQFunction(line, hidden_sizes=(4,))
    greedy = DiscreteQfDerivedPolicy(line, qf)
    observations = np.random.default_rng(0).standard_normal((50, 2))
    best = qf(torch.as_tensor(observations, dtype=torch.float32)).argmax(1).numpy()
    assert np.array_equal(greedy.get_actions(observations)[0], best)
    dueling = DiscreteMLPQFunction(line, hidden_sizes=(4,), dueling=True)
    values, out = dueling(torch.ones(3, 2)), dueling.mlp(torch.ones(3, 2))
    assert torch.allclose(values.mean(1), out[:, 0])
    values = policy.get_param_values()
    policy.set_param_values({name: torch.zeros_like(value) for name, value in values.items()})
    assert policy.get_action(np.ones(3))[0] == [0.0]
    with pytest.raises(UsageError, match="Discrete"):
        DiscreteQfDerivedPolicy(reach, qf)


def test_policies_have_the_spaces_of_env_spec_and_their_names() -> None:
    class Own(Policy):
        def get_action(self, observation: Any) -> Any:
            return 1

    reach, line = MetaRLEnv(Reach()).spec, MetaRLEnv(Line()).spec
    qf = DiscreteMLPQFunction(line, name="values")
    policies = [
        DeterministicMLPPolicy(reach, hidden_sizes=(4,), name="mine"),
        DiscreteQfDerivedPolicy(line, qf, "best"),
    ]
    assert [qf.name, *(each.name for each in policies)] == ["values", "mine", "best"]
    for spec, policy in zip((reach, line, line), (*policies, Own(line)), strict=True):
        assert (policy.observation_space, policy.action_space) == (spec.observation_space, spec.action_space)


def test_performance_is_recorded_under_its_prefix() -> None:
    paths = [
        {"undiscounted_return": total, "rewards": [1.0, total - 1.0], "terminals": [False, ended], "env_infos": {}}
        for total, ended in ((3.0, True), (5.0, False))
    ]
    tabular.take()
    assert log_performance(7, paths, discount=0.5, prefix="Mine") == [3.0, 5.0]
    row = tabular.take()
    assert {name: row[f"Mine/{name}"] for name in ("Iteration", "NumTrajs", "AverageReturn", "CompletionRate")} == {
        "Iteration": 7,
        "NumTrajs": 2,
        "AverageReturn": 4.0,
        "CompletionRate": 0.5,
    }
    assert row["Mine/AverageDiscountedReturn"] == 1.0 + 0.5 * 3.0
