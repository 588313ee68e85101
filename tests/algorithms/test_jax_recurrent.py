"""Recurrent networks in JAX: the same as in torch, and a batch of sequences as each episode alone."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import offbeat
from offbeat.algorithms.jax.recurrent import Recurrent
from offbeat.algorithms.torch.recurrent import Recurrent as TorchRecurrent
from offbeat.errors import UsageError
from offbeat.types import EnvSpec
from small_backends import BOX, CHOICE, MASKED, STATE, learn, metrics_of, part
from small_sequences import recurrent, sequences

CLOSE = {"float32": 1e-5, "float64": 1e-9}
TOLERANCE = {"rtol": 0, "atol": 1e-9}
CASES: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "sac, rnn, two layers": ("sac", BOX, {"network": "rnn", "recurrent_layers": 2, "burn_in": 0}),
    "sac, gru": ("sac", STATE, {"max_grad_norm": 0.1, "n_step": 3}),
    "sac, lstm": ("sac", BOX, {"network": "lstm", "n_step": 3}),
    "sac, lstm, two layers, zero start": (
        "sac",
        STATE,
        {"network": "lstm", "start_state": "zero", "recurrent_layers": 2, "n_step": 2},
    ),
    "sac, gru, zero start": ("sac", BOX, {"start_state": "zero", "layer_norm": True, "sequence_length": 1}),
    "sac of choices": ("sac", CHOICE, {"network": "lstm", "critic_hidden": (5,)}),
    "sac of masked choices": ("sac", MASKED, {"n_step": 2}),
    "redq": ("redq", BOX, {"critics": 3, "target_subset": 2, "actor_every": 2}),
    "td3": ("td3", STATE, {"network": "rnn", "n_step": 2}),
    "ddpg": ("ddpg", BOX, {"network": "lstm"}),
    "dqn": ("dqn", CHOICE, {"network": "gru", "recurrent_layers": 2}),
    "dueling dqn": ("dqn", MASKED, {"network": "lstm", "dueling": True, "n_step": 2}),
}


def assert_close(left: dict[str, Any], right: dict[str, Any], close: float) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert np.isfinite(values).all(), name
        assert np.asarray(values).dtype == np.asarray(right[name]).dtype, name
        np.testing.assert_allclose(right[name], values, rtol=close, atol=close, err_msg=name)


def compare(given: tuple[str, EnvSpec, dict[str, Any]], precision: str) -> None:
    algorithm, spec, settings = given
    ours, other = (recurrent(algorithm, spec, backend, precision, **settings) for backend in ("torch", "jax"))
    assert_close(ours.arrays(), other.arrays(), 0.0)
    assert ours.state_size == other.state_size > 0
    every, close = sequences(ours, 10, weight=True), CLOSE[precision]
    for start, stop in ((0, 1), (1, 10)):
        found = [learn(each, part(every, slice(start, stop)), start, td_errors=True) for each in (ours, other)]
        assert_close(ours.arrays(), other.arrays(), close)
        assert_close(*map(metrics_of, found), close)
        assert_close(*({"td errors": each.td_errors} for each in found), close)
    first = np.random.default_rng(0).standard_normal((4, spec.observation_size))
    np.testing.assert_allclose(other.acting_outputs(first), ours.acting_outputs(first), rtol=close, atol=close)


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        pytest.param(*each, marks=() if each == ("sac, gru", "float64") else pytest.mark.slow)
        for each in itertools.product(CASES, CLOSE)
    ],
)
def test_torch_and_jax_agree_after_one_and_after_ten_updates(case: str, precision: str) -> None:
    compare(CASES[case], precision)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_a_masked_batch_equals_running_each_episode_alone(kind: str) -> None:
    """Values and gradients. Each episode alone runs in torch, with the same weights."""
    trunk, theirs = Recurrent(kind, 3, 5, 2), TorchRecurrent(kind, 3, 5, 2, np.random.default_rng(1)).double()
    steps, rows, size = 12, 5, trunk.state_size
    broken = np.random.default_rng(2).random((steps, rows)) < 0.3
    broken[0] = True
    x, start, ignored = draw(steps, rows, 3), draw(steps, rows, size, seed=1), draw(rows, size, seed=4)
    of_features, of_states = draw(steps, rows, 5, seed=3), draw(steps, rows, size, seed=5)

    def together(weights: Any, x: Any) -> Any:
        features, states = trunk(weights, x, jnp.asarray(ignored), jnp.asarray(broken), jnp.asarray(start))
        return (features * of_features).sum() + (states * of_states).sum(), (features, states)

    with jax.enable_x64(True):
        first = trunk.first(np.random.default_rng(1))
        found = jax.jit(jax.grad(together, argnums=(0, 1), has_aux=True))(jax.tree.map(jnp.asarray, first), x)
    (of_weights, of_x), (features, states) = jax.tree.map(np.asarray, found)
    given, alone = torch.from_numpy(x).requires_grad_(), torch.zeros((), dtype=torch.float64)
    for row in range(rows):
        begins = np.flatnonzero(broken[:, row]).tolist()
        for begin, end in zip(begins, [*begins[1:], steps], strict=True):
            piece, one, state = slice(begin, end), slice(row, row + 1), torch.from_numpy(start[begin, row : row + 1])
            never, unused = torch.zeros(end - begin, 1, dtype=torch.bool), state.expand(end - begin, 1, size)
            out, after = theirs(given[piece, one], state, never, unused)
            np.testing.assert_allclose(features[piece, one], out.detach(), **TOLERANCE)
            np.testing.assert_allclose(states[piece, one], after.detach(), **TOLERANCE)
            alone = alone + (out * torch.from_numpy(of_features[piece, one])).sum()
            alone = alone + (after * torch.from_numpy(of_states[piece, one])).sum()
    at_x, *at_weights = torch.autograd.grad(alone, [given, *theirs.parameters()])
    np.testing.assert_allclose(of_x, at_x, **TOLERANCE)
    assert len(of_weights) == len(at_weights) == 8
    for name, gradient in zip(first, at_weights, strict=True):
        assert of_weights[name].dtype == np.float64
        np.testing.assert_allclose(of_weights[name], gradient, **TOLERANCE, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_compiled_gradients_are_those_of_single_operations(kind: str) -> None:
    """At usual sizes. A step of gradient descent at rate 1 is the gradient."""
    plain = {"optimiser": "sgd", "target_every": 1, "tau": 0.5, "hidden": (64,), "recurrent_size": 64}
    states = []
    for compiled in (True, False):
        learner = recurrent("sac", BOX, "jax", "float32", **plain, network=kind, sequence_length=8, batch_size=16)
        noise = np.random.default_rng(8).standard_normal((1, *learner.noise_shape))
        rates = [{"actor": 1.0, "critic": 1.0, "temperature": 1.0}]
        with jax.disable_jit(not compiled):
            learner.update(sequences(learner, 1), noise, rates, updates=0, seed=3, td_errors=True)
        states.append(learner.arrays())
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_recurrent_ppo_needs_torch(algorithm: str) -> None:
    with pytest.raises(UsageError, match="network='gru' of PPO and APPO needs backend=torch"):
        offbeat.Agent(algorithm, BOX, network="gru", backend="jax")
