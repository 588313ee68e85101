"""bfloat16 and float16: networks compute in them, weights and losses are float32, gradients are near float32's."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import small_backends as small
from driven_learner import Learner
from offbeat.algorithms.registry import find
from offbeat.algorithms.torch import Network, make_optimiser
from offbeat.algorithms.torch.precision import MIXED
from offbeat.learn.torch import TorchBackend
from offbeat.settings import make_learner_config
from own_parts.expectile import ALGORITHM
from small_rollouts import BOX, make, rollout, turn

ACCURACY = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The relative rounding error of a number."""
DEFAULT = ("sac", "td3", "dqn")
CASES = [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in small.CASES]


class Spy(nn.Module):
    """A critic that notes the dtypes of its products."""

    seen: ClassVar[set[torch.dtype]] = set()

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(spec.observation_size + spec.action_size, 8), nn.Linear(8, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        hidden: Tensor = self.first(torch.cat((obs, action), 1))
        Spy.seen.add(hidden.dtype)
        out: Tensor = self.last(hidden.relu())
        return out


def networks(backend: TorchBackend) -> dict[str, Network]:
    return {name: getattr(backend.state, name) for name in backend.networks}


def updated(name: str, precision: str, count: int = 1) -> Any:
    algorithm, spec, settings = small.CASES[name]
    smooth = {"hidden": (32, 32), "activation": "tanh", "optimiser": "sgd"}  # no kinks that a rounding may cross
    backend = small.make(algorithm, spec, precision=precision, **smooth, **settings)
    small.learn(backend, small.batches(spec, count))
    return backend


def difference(found: Tensor, wanted: Tensor) -> float:
    """The length of the difference, as a share of what is wanted."""
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_products_are_computed_in_half_precision_and_everything_else_in_float32(precision: str) -> None:
    Spy.seen = set()
    backend = small.make("sac", BOX, precision=precision, critic=Spy)
    assert Spy.seen == {torch.float32}  # the trial of a user's module, before precision matters
    Spy.seen = set()
    result = small.learn(backend, small.batches(BOX, 2))
    assert Spy.seen == {MIXED[precision]}
    floating = [array for array in backend.arrays().values() if array.dtype.kind == "f"]
    assert {array.dtype for array in floating} == {np.dtype(np.float32)}
    assert {array.dtype for array in backend.weights().values()} == {np.dtype(np.float32)}
    assert {value.dtype for values in result.metrics.values() for value in values} == {torch.float32}
    assert not any(network.explicit for network in networks(backend).values())


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_other_precisions_keep_explicit_gradients(precision: str) -> None:
    backend = updated("sac", precision)
    assert all(network.explicit for network in networks(backend).values())
    assert backend.dtype == getattr(torch, precision)
    assert backend.counters() == {}


@pytest.mark.parametrize("precision", ACCURACY)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_near_those_of_float32(name: str, precision: str) -> None:
    lower, full = updated(name, precision), updated(name, "float32")
    for role, network in networks(full).items():
        if network.gradient.any():
            # A few roundings in each of three layers, forward and backward; the actor's pass through the critics, too.
            assert difference(networks(lower)[role].gradient, network.gradient) < 16 * ACCURACY[precision], role
            assert networks(lower)[role].gradient.dtype == torch.float32


def test_gradients_differ_by_what_half_precision_rounds_off() -> None:
    """The bounds of the test before hold all precisions apart."""
    full = updated("sac", "float32").state.critic.gradient
    errors = {each: difference(updated("sac", each).state.critic.gradient, full) for each in ACCURACY}
    assert errors["bfloat16"] > 0.5 * ACCURACY["bfloat16"]
    assert ACCURACY["float16"] / 4 < errors["float16"] < errors["bfloat16"] / 4


@pytest.mark.parametrize("precision", ACCURACY)
@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("appo", marks=pytest.mark.slow)])
def test_rollouts_are_learned_from_in_mixed_precision(algorithm: str, precision: str) -> None:
    lower, full = (make(algorithm, precision=each, optimiser="sgd") for each in (precision, "float32"))
    before = {name: getattr(full.state, name).flat.clone() for name in ("actor", "critic")}
    experience = rollout(full)
    assert turn(lower, experience) == turn(full, experience) == 8
    for name, was in before.items():
        assert difference(getattr(lower.state, name).flat - was, getattr(full.state, name).flat - was) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("network", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("precision", ACCURACY)
def test_recurrent_networks_learn_in_mixed_precision(network: str, precision: str) -> None:
    from test_appo_recurrent import acted_rollout, learner_of

    lower, full = (learner_of(network=network, precision=each, optimiser="sgd") for each in (precision, "float32"))
    experience, before = acted_rollout(full), full.state.actor.flat.clone()
    if lower.backend.scaler is not None:
        lower.backend.scaler.scale.fill_(64.0)  # no step is left out
    turn(lower, experience)
    turn(full, experience)
    assert difference(lower.state.actor.flat - before, full.state.actor.flat - before) < 0.1


# What an algorithm of a user's own does.


def own_backend(precision: str) -> TorchBackend:
    config = make_learner_config(ALGORITHM, hidden=(16, 16), batch_size=small.ROWS)
    rng = np.random.default_rng(1)
    module = find(ALGORITHM).module("torch", BOX)
    return TorchBackend(module, config, BOX, rng=rng, precision=precision, autograd=True)


@pytest.mark.parametrize("precision", ACCURACY)
def test_losses_of_a_users_own_are_computed_with_networks_in_half_precision(precision: str) -> None:
    lower, full = own_backend(precision), own_backend("float32")
    found, wanted = (small.learn(each, small.batches(BOX, 4)) for each in (lower, full))
    for name in ("critic_loss", "value_loss", "actor_loss"):
        pairs = list(zip(found.metrics[name], wanted.metrics[name], strict=True))
        assert {value.dtype for value, _ in pairs} == {torch.float32}
        assert any(float(value) != float(other) for value, other in pairs)
        assert all(float(value) == pytest.approx(float(other), rel=0.05, abs=0.02) for value, other in pairs)


def test_a_copy_of_a_network_computes_with_its_own_weights_in_the_same_precision() -> None:
    network = small.make("td3", BOX, precision="bfloat16").state.actor
    copied, x = network.copy(), torch.randn(4, 5)
    torch.testing.assert_close(copied(x), network(x), rtol=0, atol=0)
    copied.flat.zero_()
    assert not copied(x).any()
    assert network(x).any()


def test_what_acts_is_compared_with_the_network_in_full_precision() -> None:
    lower, full = (small.make("td3", BOX, precision=each) for each in ("bfloat16", "float32"))
    obs = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    np.testing.assert_allclose(lower.acting_outputs(obs), full.acting_outputs(obs), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_compiled_networks_compute_in_half_precision() -> None:
    learners = [
        Learner("sac", make_learner_config("sac", hidden=(16,), batch_size=32, compile=mode), BOX, **kind)
        for mode in ("off", "default")
        for kind in [{"rng": np.random.default_rng(1), "precision": "bfloat16"}]
    ]
    for learner in learners:
        small.learn(learner.backend, small.batches(BOX, 3, 32))
    off, compiled = (learner.state.critic for learner in learners)
    assert difference(compiled.flat, off.flat) < 2 * ACCURACY["bfloat16"]
    x = torch.randn(4, 5), torch.zeros(4, 0), torch.randn(4, 2)
    exact = make_exact(compiled)
    assert 0 < difference(compiled(*x), exact(*x)) < 4 * ACCURACY["bfloat16"]


def make_exact(network: Network) -> Any:
    """The network in float32."""
    return lambda *parts: network.module._full_precision_forward(*parts).detach()


def test_an_optimiser_of_each_kind_steps_in_mixed_precision() -> None:
    for optimiser in ("adam", "adamw", "rmsprop", "sgd"):
        backend = small.make("td3", BOX, precision="float16", optimiser=optimiser)
        kind = type(make_optimiser(backend.config.optimisation, torch.zeros(1)))
        assert type(backend.state.critic_optimiser.optimiser) is kind
        before = backend.state.critic.flat.clone()
        small.learn(backend, small.batches(BOX, 1))
        assert not torch.equal(backend.state.critic.flat, before)
