"""Policies give the same actions as the learner's forward pass, in NumPy and in torch."""

from __future__ import annotations

import typing

import numpy as np
import pytest
import torch

from driven_learner import Learner
from offbeat.algorithms.configs import Activation
from offbeat.algorithms.torch import sac
from offbeat.errors import UsageError
from offbeat.policies import NUMPY_BELOW, choose_backend, make_policy
from offbeat.policies.mlp import MLPPolicy
from offbeat.settings import make_learner_config
from offbeat.types import Chunk, EnvSpec
from specs import vector_spec

ACTIVATIONS = typing.get_args(Activation)


def _learner(spec: EnvSpec, **settings: object) -> Learner:
    return Learner("sac", make_learner_config("sac", hidden=(64, 64), **settings), spec, rng=np.random.default_rng(3))  # type: ignore[arg-type]


class _FixedNoise:
    """A generator that returns one given array, so that policy and learner see the same noise."""

    def __init__(self, noise: np.ndarray) -> None:
        self.noise = noise

    def standard_normal(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        assert shape == self.noise.shape
        return self.noise.astype(dtype)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_policy_equals_the_learners_forward_pass(backend: str, layer_norm: bool, activation: str) -> None:
    spec, rng = vector_spec(17, 6), np.random.default_rng(0)
    learner = _learner(spec, activation=activation, layer_norm=layer_norm, normalise_observations=True)
    rows = rng.normal(3.0, 2.0, (500, 17)).astype(np.float32)
    ended = np.zeros(500, np.float32)
    learner.observe(Chunk({"obs": rows, "next_obs": rows, "terminated": ended, "truncated": ended, "env": ended}))
    policy = make_policy(learner.backend.policy_description(), acting=backend)
    policy.load(learner.weights())

    obs = rng.normal(3.0, 2.0, (50, 17)).astype(np.float32)
    noise = rng.standard_normal((50, 6)).astype(np.float32)
    assert learner.observations is not None
    with torch.no_grad():
        inputs = torch.from_numpy(learner.observations(obs)), torch.from_numpy(noise)
        expected = sac.sample(learner.config, learner.state.actor, *inputs)[0].numpy()
        mean = sac.sample(learner.config, learner.state.actor, inputs[0], torch.zeros(50, 6))[0].numpy()
    acted, _, _ = policy.act(obs, policy.initial_carry(50), _FixedNoise(noise))
    np.testing.assert_allclose(acted, expected, rtol=0, atol=1e-6)
    deterministic, _, _ = policy.act(obs, policy.initial_carry(50), None)
    np.testing.assert_allclose(deterministic, mean, rtol=0, atol=1e-6)
    assert acted.dtype == np.float32


def test_log_deviation_is_clamped_where_the_config_says() -> None:
    spec = vector_spec(3, 1)
    learner = _learner(spec, log_std_min=-20.0, log_std_max=-19.0)
    policy = make_policy(learner.backend.policy_description())
    policy.load(learner.weights())
    obs = np.zeros((1, 3), np.float32)
    still, _, _ = policy.act(obs, policy.initial_carry(1), None)
    noisy, _, _ = policy.act(obs, policy.initial_carry(1), np.random.default_rng(0))
    np.testing.assert_allclose(noisy, still, atol=1e-6)


def test_numpy_acts_for_few_environments_or_small_layers_and_torch_for_much_work_unless_told() -> None:
    description = _learner(vector_spec()).backend.policy_description()

    def backend(**options: object) -> str:
        policy = make_policy(description, **options)  # type: ignore[arg-type]
        assert isinstance(policy, MLPPolicy)
        return "torch" if policy._backend.tanh is torch.tanh else "numpy"

    assert backend(acting="torch") == "torch"
    assert backend(num_envs=1000, acting="numpy") == backend() == "numpy"
    many = NUMPY_BELOW // 256**2
    assert choose_backend("auto", many, (256, 256)) == choose_backend("auto", many, (64, 64)) == "numpy"
    assert choose_backend("auto", many + 1, (256, 256)) == choose_backend("auto", many, (300, 300)) == "torch"
    assert choose_backend("auto", 10, (8,)) == choose_backend("auto", 10, ()) == "numpy"
    assert choose_backend("numpy", many + 1, (256, 256)) == "numpy"
    assert choose_backend("auto", 31, (8,), one_thread=False) == "numpy"
    assert choose_backend("auto", 32, (8,), one_thread=False) == "torch"


def test_weights_are_a_copy_that_later_updates_leave_alone() -> None:
    learner = _learner(vector_spec())
    weights = learner.weights()
    before = {name: array.copy() for name, array in weights.items()}
    learner.state.actor.flat.add_(1.0)
    for name, array in weights.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_policy_of_an_unknown_kind_or_without_its_actor_is_refused() -> None:
    with pytest.raises(UsageError, match="riddle"):
        make_policy({"kind": "riddle"})
    with pytest.raises(UsageError, match="actor="):
        make_policy({"kind": "module"})
