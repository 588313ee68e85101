"""Every explicit gradient against autograd, in float64, and both passes of a whole update against each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from driven_learner import Learner
from offbeat.algorithms.configs import Fixed
from offbeat.algorithms.torch.differentiate import AutogradPass, ExplicitPass, Network
from offbeat.algorithms.torch.distributions import squash, squash_gradient
from offbeat.algorithms.torch.networks import MLP, StackedCritics
from offbeat.settings import make_learner_config
from specs import random_transitions, vector_spec

EXACT = {"rtol": 1e-10, "atol": 1e-12}
explicit_activations = pytest.mark.parametrize("activation", ["relu", "tanh"])


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def _mlp(activation: str, members: int | None = None) -> MLP:
    rng = np.random.default_rng(1)
    return MLP((5, 16, 8, 3), activation=activation, layer_norm=False, rng=rng, members=members)


@explicit_activations
def test_mlp_gradient_equals_autograd(activation: str) -> None:
    explicit, autograd = Network(_mlp(activation).double()), Network(_mlp(activation).double(), explicit=False)
    assert isinstance(explicit._pass, ExplicitPass)
    assert isinstance(autograd._pass, AutogradPass)
    x, g = _normal(7, 5), _normal(7, 3, seed=1)
    outputs = []
    for network in (explicit, autograd):
        out, tape = network.forward(x)
        outputs.append(out.clone())
        network.backward(tape, g)
    torch.testing.assert_close(*outputs, **EXACT)
    torch.testing.assert_close(explicit.gradient, autograd.gradient, **EXACT)


@explicit_activations
@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("state", [0, 4])
def test_stacked_critics_gradient_equals_autograd(activation: str, members: int, state: int) -> None:
    spec = vector_spec(5, 2, state=state)
    settings = {"activation": activation, "layer_norm": False}
    explicit, autograd = (
        Network(
            StackedCritics(spec, members, (16, 8), rng=np.random.default_rng(1), **settings).double(), explicit=each
        )
        for each in (True, False)
    )
    parts, g = (_normal(7, 5), _normal(7, state), _normal(7, 2)), _normal(members, 7, seed=1)
    outputs, actions, chosen = [], [], []
    for network in (explicit, autograd):
        out, tape = network.forward(*parts)
        outputs.append(out.clone())
        network.backward(tape, g)
        out, tape = network.forward(*parts)
        actions.append(network.input_gradient(2, tape, g))
        out, tape = network.forward(*parts)
        chosen.append(network.input_gradient(2, tape, g[0], which=torch.arange(7) * 3 % members))
        torch.testing.assert_close(network(*parts), out, **EXACT)
    torch.testing.assert_close(*outputs, **EXACT)
    torch.testing.assert_close(*actions, **EXACT)
    torch.testing.assert_close(*chosen, **EXACT)
    torch.testing.assert_close(explicit.gradient, autograd.gradient, **EXACT)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("members", [1, 3])
def test_fitting_is_forward_and_backward_in_one(explicit: bool, members: int) -> None:
    settings = {"activation": "relu", "layer_norm": False, "rng": np.random.default_rng(1)}
    network = Network(StackedCritics(vector_spec(5, 2), members, (16, 8), **settings).double(), explicit=explicit)
    parts, others = ((_normal(7, 5, seed=each), _normal(7, 0), _normal(7, 2, seed=each)) for each in (0, 1))
    target, copied = _normal(7, seed=2), network.copy()
    out, tape = network.forward(*parts)
    expected = out.clone()
    copied(*others)  # works in the same space, and leaves the tape alone
    copied.forward_backward(others, lambda q: q - target)
    network.backward(tape, (expected - target) * 0.5)
    gradient = network.gradient.clone()
    network.gradient.fill_(7.0)
    torch.testing.assert_close(network.forward_backward(parts, lambda q: (q - target) * 0.5), expected, **EXACT)
    torch.testing.assert_close(network.gradient, gradient, **EXACT)
    network.forward_backward(parts, lambda q: (q - target) * 0.5, add=True)
    torch.testing.assert_close(network.gradient, 2 * gradient, **EXACT)


@pytest.mark.parametrize("explicit", [True, False])
def test_gradients_of_blocks_add_up_to_the_whole(explicit: bool) -> None:
    network = Network(_mlp("relu", members=3).double(), explicit=explicit)
    assert network.explicit == explicit
    x, g = _normal(9, 5), _normal(3, 9, 3, seed=1)
    _, tape = network.forward(x.expand(3, 9, 5)) if not explicit else network.forward(x)
    network.backward(tape, g)
    whole = network.gradient.clone()
    for start in (0, 4):
        rows = slice(start, start + 5 if start else 4)
        part = x[rows] if explicit else x[rows].expand(3, -1, -1)
        _, tape = network.forward(part)
        network.backward(tape, g[:, rows], add=start > 0)
    torch.testing.assert_close(network.gradient, whole, **EXACT)


def test_an_update_in_blocks_equals_an_update_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, rng = vector_spec(5, 2, state=1), np.random.default_rng(0)
    batches = [(random_transitions(rng, spec, 37, np.float64), rng.standard_normal((2, 37, 2))) for _ in range(10)]
    results = []
    for rows in (10**9, 8):
        monkeypatch.setattr("offbeat.algorithms.torch.batch.BLOCK_ROWS", rows)
        config = make_learner_config("sac", hidden=(16, 16), batch_size=37)
        learner = Learner("sac", config, spec, rng=np.random.default_rng(1), precision="float64")
        for batch, noise in batches:
            learner.update_once(batch, noise)
        results.append((learner.state.actor.flat, learner.state.critic.flat, learner.drain()))
    for index in (0, 1):
        torch.testing.assert_close(results[0][index], results[1][index], rtol=1e-9, atol=1e-12)
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-9)


@pytest.mark.parametrize("explicit", [True, False])
def test_the_first_member_alone_is_the_first_of_all(explicit: bool) -> None:
    critics = StackedCritics(
        vector_spec(), 3, (8, 8), activation="relu", layer_norm=False, rng=np.random.default_rng(0)
    )
    network = Network(critics.double(), explicit=explicit)
    parts, g = (_normal(4, 5), _normal(4, 0), _normal(4, 2)), _normal(4, seed=1)
    with torch.no_grad():
        q, tape = network.first_member.forward(*parts)
        found = network.first_member.to_input(2, tape, g)
    whole = torch.zeros(3, 4, dtype=torch.float64)
    whole[0] = g
    out, tape = network.forward(*parts)
    torch.testing.assert_close(q, out[0], **EXACT)
    torch.testing.assert_close(found, network.input_gradient(2, tape, whole), **EXACT)


def test_gradient_at_an_input_leaves_the_parameters_gradient_alone() -> None:
    critics = StackedCritics(vector_spec(), 2, (8,), activation="relu", layer_norm=False, rng=np.random.default_rng(0))
    network = Network(critics.double())
    network.gradient.fill_(7.0)
    _, tape = network.forward(_normal(3, 5), _normal(3, 0), _normal(3, 2))
    network.input_gradient(2, tape, _normal(2, 3))
    assert (network.gradient == 7.0).all()


def test_squashed_gaussian_gradient_equals_autograd() -> None:
    bounds = (-1.0, 0.8)  # tight, so that some entries are clamped
    out, noise = (2.0 * _normal(50, 6)).requires_grad_(), _normal(50, 3, seed=1)
    d_action, d_log_prob = _normal(50, 3, seed=2), _normal(1, seed=3)
    action, log_prob, saved = squash(out, noise, bounds)
    raw = out[:, 3:]
    assert ((raw < bounds[0]) | (raw > bounds[1])).any()
    (expected,) = torch.autograd.grad((action * d_action).sum() + d_log_prob * log_prob.sum(), out)
    given = squash_gradient(tuple(each.detach() for each in saved), d_action, d_log_prob, bounds)
    torch.testing.assert_close(given, expected, **EXACT)


def test_log_probability_equals_torchs_own_transformed_distribution() -> None:
    out, noise = 0.3 * _normal(20, 4), _normal(20, 2, seed=1)  # moderate, because theirs inverts the tanh
    action, log_prob, _ = squash(out, noise, (-20.0, 2.0))
    normal = torch.distributions.Normal(out[:, :2], out[:, 2:].exp())
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(-1), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [{}, {"activation": "tanh", "critics": 3}, {"actor_every": 2, "max_grad_norm": 0.5, "temperature": Fixed(0.1)}],
)
def test_explicit_and_autograd_updates_agree_over_a_hundred_updates(settings: dict) -> None:
    spec, rng = vector_spec(5, 2, state=1), np.random.default_rng(0)
    learners = [
        Learner(
            "sac",
            make_learner_config("sac", hidden=(16, 16), batch_size=32, gradients=each, **settings),
            spec,
            rng=np.random.default_rng(1),
            precision="float64",
        )
        for each in ("auto", "autograd")
    ]
    assert [learner.state.critic.explicit for learner in learners] == [True, False]
    for _ in range(100):
        batch, noise = random_transitions(rng, spec, 32, np.float64), rng.standard_normal((2, 32, 2))
        for learner in learners:
            learner.update_once(batch, noise)
    for name in ("actor", "critic", "target"):
        flats = [getattr(learner.state, name).flat for learner in learners]
        torch.testing.assert_close(*flats, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(*[learner.state.log_temperature for learner in learners], rtol=1e-9, atol=1e-12)
    explicit, autograd = (learner.drain() for learner in learners)
    assert explicit == pytest.approx(autograd, rel=1e-9)


@pytest.mark.parametrize("settings", [{"activation": "silu"}, {"activation": "gelu"}, {"layer_norm": True}])
def test_what_has_no_explicit_gradient_goes_through_autograd(settings: dict) -> None:
    learner = Learner(
        "sac", make_learner_config("sac", hidden=(8,), **settings), vector_spec(), rng=np.random.default_rng(0)
    )
    assert not learner.state.critic.explicit


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_leaves_its_earlier_outputs_alone(explicit: bool, threads: int) -> None:
    rng, spec = np.random.default_rng(0), vector_spec(4, 2)
    settings = {"activation": "relu", "layer_norm": False, "rng": rng}
    generator, before = torch.Generator().manual_seed(1), torch.get_num_threads()
    torch.set_num_threads(threads)
    modules = MLP((6, 8, 3), **settings), MLP((6, 1), **settings), StackedCritics(spec, 2, (8,), **settings)
    for network in (Network(module.double(), explicit=explicit) for module in modules):
        target = network.copy()
        assert network.explicit == explicit
        inputs = [torch.randn(5, 6, generator=generator, dtype=torch.float64) for _ in range(4)]
        outputs = [network(inputs[0]), target(inputs[1]), network.forward(inputs[2])[0]]
        outputs.append(network.forward_backward((inputs[3],), torch.zeros_like))
        for output, each in zip(outputs, inputs, strict=True):
            torch.testing.assert_close(output, network.module(each).detach())
    torch.set_num_threads(before)
