"""Losses that autograd differentiates: the same steps as the gradients that are written out, and errors that help."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.algorithms.registry import find
from offbeat.algorithms.torch import Network, make_optimiser, minimise, td3, weighted
from offbeat.algorithms.torch.minimise import loss_gradient
from offbeat.algorithms.torch.optimise import SGD
from offbeat.errors import OffbeatError
from offbeat.learn.torch import TorchBackend
from offbeat.settings import make_learner_config
from offbeat.types import Batches
from specs import random_transitions, vector_spec

SPEC, ROWS = vector_spec(5, 2, state=3), 16


def update(state: Any, config: Any, spec: Any, batch: Any, noise: Any, rates: Any, updates: int) -> Any:
    """TD3 as losses only."""
    now, following = (batch.obs, batch.state), (batch.next_obs, batch.next_state)
    norm, limit = config.optimisation.max_grad_norm, config.target_noise_clip
    disturbance = (noise * config.target_noise).clamp(-limit, limit)
    next_action = (state.target_actor(batch.next_obs).tanh() + disturbance).clamp(-1.0, 1.0)
    target = batch.reward + batch.discount * state.target(*following, next_action).amin(0)
    error = state.critic.module(*now, batch.action) - target
    loss = weighted(error.square(), batch.weight).mean(1).sum()
    metrics = {"critic_loss": minimise(loss, state.critic, state.critic_optimiser, rates["critic"], norm)}
    if (updates + 1) % config.actor_every == 0:
        loss = -state.critic.module(*now, state.actor.module(batch.obs).tanh())[0].mean()
        metrics["actor_loss"] = minimise(loss, state.actor, state.actor_optimiser, rates["actor"], norm)
    if (updates + 1) % config.target.target_every == 0:
        state.target.follow(state.critic, config.target.tau)
        state.target_actor.follow(state.actor, config.target.tau)
    return metrics, error


AS_LOSSES = SimpleNamespace(
    init=td3.init, noise_shape=td3.noise_shape, update=update, policy_description=td3.policy_description
)


def learned(module: Any, autograd: bool, **settings: Any) -> tuple[TorchBackend, Any]:
    """The backend after five updates in float64, and what they gave."""
    config = make_learner_config("td3", hidden=(8, 8), batch_size=ROWS, max_grad_norm=0.5, **settings)
    backend = TorchBackend(module, config, SPEC, rng=np.random.default_rng(1), precision="float64", autograd=autograd)
    rng = np.random.default_rng(7)
    each = [random_transitions(rng, SPEC, ROWS, np.float64) for _ in range(5)]
    names = [field.name for field in dataclasses.fields(each[0]) if field.name not in ("rows", "mask", "next_mask")]
    columns = {name: np.stack([getattr(batch, name) for batch in each]) for name in names}
    batches = Batches(columns, np.zeros((5, ROWS), np.int64), rng.random((5, ROWS)))
    noise, rates = rng.standard_normal((5, *backend.noise_shape)), [{"actor": 1e-2, "critic": 1e-2}] * 5
    return backend, backend.update(batches, noise, rates, updates=0, seed=0, td_errors=True)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_losses_make_the_same_steps_as_explicit_gradients(layer_norm: bool) -> None:
    settings = {"layer_norm": layer_norm, "actor_every": 2}
    (ours, explicit), (theirs, by_losses) = (
        learned(find("td3").module("torch", SPEC), False, **settings),
        learned(AS_LOSSES, True, **settings),
    )
    for name, array in ours.arrays().items():
        np.testing.assert_allclose(theirs.arrays()[name], array, rtol=1e-8, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(by_losses.td_errors, explicit.td_errors, rtol=1e-9)
    assert len(by_losses.metrics["actor_loss"]) == 2
    for name in ("critic_loss", "actor_loss"):
        values = [[float(value) for value in each.metrics[name]] for each in (explicit, by_losses)]
        assert values[0] == pytest.approx(values[1])
        assert not any(value.requires_grad for value in by_losses.metrics[name])


def network(width: int = 3) -> Network:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)).double()
    return Network(module, explicit=False)


X = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64).reshape(4, 2)


def test_the_gradient_is_in_the_order_of_the_flat_vector() -> None:
    net = network()
    found = loss_gradient(net.module(X).square().mean(), net)
    small, wanted = 1e-6, torch.zeros_like(net.flat)
    for index in range(len(net.flat)):
        values = []
        for step in (small, -small):
            net.flat[index] += step
            values.append(float(net(X).square().mean()))
            net.flat[index] -= step
        wanted[index] = (values[0] - values[1]) / (2 * small)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


def test_only_the_named_network_learns() -> None:
    inner, outer = network(2), network(3)
    before = inner.flat.clone(), outer.flat.clone()
    loss = outer.module(inner.module(X).expand(-1, 2)).mean()
    assert not minimise(loss, inner, SGD(), 0.1).requires_grad
    assert not torch.equal(inner.flat, before[0])
    assert torch.equal(outer.flat, before[1])


def test_a_single_tensor_learns_too() -> None:
    temperature = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimiser = make_optimiser(make_learner_config("sac").optimisation, temperature.detach(), decay=False)
    for _ in range(500):
        minimise((temperature - 3.0).square().sum(), temperature, optimiser, 0.05)
    assert float(temperature.detach()) == pytest.approx(3.0, abs=0.01)


def test_a_loss_that_is_older_than_a_step_is_refused() -> None:
    """Its gradient would mix outputs from before the step with weights from after it."""
    critic, actor = network(), network()
    old = critic.module(actor.module(X).expand(-1, 2)).mean()
    minimise(critic.module(X).square().mean(), critic, SGD(), 0.1)
    with pytest.raises(OffbeatError, match="Compute each loss directly before its step"):
        minimise(old, actor, SGD(), 0.1)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda net: net.module(X)[:, 0], r"has the shape \(4,\), but must be one number: use its mean or sum"),
        (lambda net: net(X).mean(), r"has no gradient: compute it with network.module\(...\)"),
        (lambda net: network().module(X).mean(), "does not depend on what it is to train"),
    ],
)
def test_a_loss_that_cannot_train_the_network_is_refused(loss: Any, words: str) -> None:
    net = network()
    with pytest.raises(OffbeatError, match=words):
        minimise(loss(net), net, SGD(), 0.1)
