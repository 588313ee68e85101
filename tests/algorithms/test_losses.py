"""Losses and the policies' likelihoods: every gradient against autograd, every formula against torch's."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from offbeat.algorithms.torch.batch import Batch, BlockSums
from offbeat.algorithms.torch.differentiate import Network
from offbeat.algorithms.torch.distributions import Categorical, GaussianHead, Head, MultiCategorical
from offbeat.algorithms.torch.losses import (
    divergence,
    error_loss,
    expected_loss_gradient,
    policy_loss,
    squared_error_gradient,
    value_loss,
    values_of_actions,
    weighted,
)
from offbeat.algorithms.torch.networks import StackedCritics
from specs import vector_spec

ROWS, SIZE = 200, 3
UNEVEN, EVEN = [3, 2, 5], [4, 4]
INF = math.inf


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def indices(branches: list[int]) -> Tensor:
    """(ROWS, branches), each choice among them."""
    return torch.stack(
        [torch.arange(ROWS).div(7 * each, rounding_mode="floor") % n for each, n in enumerate(branches, 1)], 1
    )


def heads() -> list:
    own, none = normal(SIZE, seed=9) * 0.3, torch.zeros(0, dtype=torch.float64)
    return [
        pytest.param(GaussianHead(), normal(ROWS, SIZE), own, normal(ROWS, SIZE, seed=1), id="gaussian"),
        pytest.param(GaussianHead(), normal(ROWS, 2 * SIZE), none, normal(ROWS, SIZE, seed=1), id="dependent"),
        pytest.param(GaussianHead(True), normal(ROWS, SIZE), own, normal(ROWS, SIZE, seed=1).tanh(), id="squashed"),
        pytest.param(Categorical(), normal(ROWS, 5), none, torch.arange(ROWS).remainder(5).unsqueeze(1), id="choice"),
        pytest.param(MultiCategorical(UNEVEN), normal(ROWS, sum(UNEVEN)), none, indices(UNEVEN), id="uneven"),
        pytest.param(MultiCategorical(EVEN), normal(ROWS, sum(EVEN)), none, indices(EVEN), id="even"),
    ]


@pytest.mark.parametrize(("head", "out", "log_std", "action"), heads())
def test_likelihood_gradients_are_those_of_autograd(head: Head, out: Tensor, log_std: Tensor, action: Tensor) -> None:
    out, log_std = out.clone().requires_grad_(), log_std.clone().requires_grad_()
    log_prob, entropy, saved = head(out, log_std, action)
    weight, of_entropy = normal(ROWS, seed=2), 0.7
    wanted = torch.autograd.grad(
        (weight * log_prob).sum() + of_entropy * entropy.sum(), [out, log_std], allow_unused=True
    )
    with torch.no_grad():
        found = head.gradient(saved, weight, of_entropy)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-10, atol=1e-12)
    if log_std.numel():
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("head", "out", "log_std", "action"), heads())
def test_likelihoods_are_torchs(head: Head, out: Tensor, log_std: Tensor, action: Tensor) -> None:
    log_prob, entropy, _ = head(out, log_std, action)
    if isinstance(head, Categorical):
        other: torch.distributions.Distribution = torch.distributions.Categorical(logits=out)
        torch.testing.assert_close(log_prob, other.log_prob(action.squeeze(1)))
        torch.testing.assert_close(entropy, other.entropy())
        return
    if isinstance(head, MultiCategorical):
        parts = out.split(UNEVEN if action.shape[1] == len(UNEVEN) else EVEN, 1)
        choices = [torch.distributions.Categorical(logits=part) for part in parts]
        of_each = [choice.log_prob(index) for choice, index in zip(choices, action.T, strict=True)]
        torch.testing.assert_close(log_prob, torch.stack(of_each).sum(0))
        torch.testing.assert_close(entropy, torch.stack([choice.entropy() for choice in choices]).sum(0))
        return
    mean, deviation = (out, log_std.exp()) if log_std.numel() else (out[:, :SIZE], out[:, SIZE:].exp())
    base = torch.distributions.Independent(torch.distributions.Normal(mean, deviation), 1)
    torch.testing.assert_close(entropy, base.entropy())
    other = base
    if isinstance(head, GaussianHead) and head.squashed:
        other = torch.distributions.TransformedDistribution(base, [torch.distributions.TanhTransform()])
    torch.testing.assert_close(log_prob, other.log_prob(action), rtol=1e-7, atol=1e-7)


def test_one_branch_is_a_single_choice() -> None:
    out, none, action = normal(ROWS, 5), torch.zeros(0, dtype=torch.float64), indices([5])
    several, single = MultiCategorical([5]), Categorical()
    (log_prob, entropy, saved), (wanted, wanted_entropy, wanted_saved) = (
        head(out, none, action) for head in (several, single)
    )
    torch.testing.assert_close(log_prob, wanted, rtol=0, atol=0)
    torch.testing.assert_close(entropy, wanted_entropy, rtol=0, atol=0)
    weight = normal(ROWS, seed=2)
    found, of_single = several.gradient(saved, weight, 0.7), single.gradient(wanted_saved, weight, 0.7)
    torch.testing.assert_close(found, of_single, rtol=0, atol=0)


def test_squashed_likelihoods_hold_in_float32_at_the_bounds() -> None:
    action = torch.tensor([[0.999], [0.99999], [0.9999985], [1.0]])
    mean, log_std = torch.full((4, 1), 4.0), torch.zeros(1)
    found, _, _ = GaussianHead(True)(mean, log_std, action)
    wanted, _, _ = GaussianHead(True)(mean.double(), log_std.double(), action.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("cap", [INF, 1.1])
@pytest.mark.parametrize("on_policy", [True, False])
def test_the_policys_gradient_is_that_of_the_written_out_objective(cap: float, on_policy: bool) -> None:
    behaviour, advantage = normal(ROWS), normal(ROWS, seed=1)
    reference = behaviour if on_policy else behaviour + 0.3 * normal(ROWS, seed=2)
    log_prob = (behaviour + 0.3 * normal(ROWS, seed=3)).requires_grad_()
    ratio = (
        torch.minimum((behaviour - reference).exp(), torch.tensor(cap, dtype=torch.float64))
        * (log_prob - behaviour).exp()
    )
    objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    (wanted,) = torch.autograd.grad(-objective, log_prob)
    with torch.no_grad():
        loss, gradient, found = policy_loss(log_prob, behaviour, reference, advantage, 0.2, cap)
    torch.testing.assert_close(loss, -objective.detach())
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found, ratio.detach())
    assert 0 < (gradient == 0).sum() < ROWS, "nothing was clipped, or all"
    if cap < INF and not on_policy:
        assert not torch.equal(found, policy_loss(log_prob.detach(), behaviour, reference, advantage, 0.2, INF)[2])


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_values_gradient_is_that_of_the_written_out_objective(clip: float | None) -> None:
    before, target = normal(ROWS), normal(ROWS, seed=1)
    value = (before + 0.3 * normal(ROWS, seed=2)).requires_grad_()
    errors = (value - target).square()
    if clip is not None:
        errors = torch.maximum(errors, (before + (value - before).clamp(-clip, clip) - target).square())
    (wanted,) = torch.autograd.grad(0.5 * errors.mean(), value)
    with torch.no_grad():
        loss, gradient = value_loss(value, target, before, clip)
    torch.testing.assert_close(loss, 0.5 * errors.mean().detach())
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-14)


def test_the_divergence_is_an_estimate_of_kl() -> None:
    near, far = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.2)
    torch.manual_seed(0)
    drawn = near.sample((200_000,))
    found = divergence(far.log_prob(drawn), near.log_prob(drawn))
    assert found == pytest.approx(float(torch.distributions.kl_divergence(near, far)), rel=0.05)
    assert divergence(torch.ones(5), torch.ones(5)) == 0


def critics(members: int, explicit: bool) -> Network:
    settings = {"activation": "tanh", "layer_norm": False, "rng": np.random.default_rng(1)}
    return Network(StackedCritics(vector_spec(4, SIZE), members, (8,), **settings).double(), explicit=explicit)


def batch(rows: int = 9) -> Batch:
    columns = normal(rows, 4), normal(rows, SIZE), normal(rows), normal(rows).sigmoid(), normal(rows, 4, seed=1)
    return Batch(*columns, torch.zeros(rows, 0).double(), torch.zeros(rows, 0).double())


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("of", ["min", "mean", "first"])
def test_the_gradient_of_the_critics_values_at_the_actions_is_that_of_autograd(of: str, explicit: bool) -> None:
    network, given = critics(3, explicit), batch()
    action = normal(9, SIZE, seed=2).requires_grad_()
    q = network.module(given.obs, given.state, action)
    wanted = {"min": q.amin(0), "mean": q.mean(0), "first": q[0]}[of]
    (gradient,) = torch.autograd.grad(-0.3 * wanted.sum(), action)
    found = values_of_actions(network, given, action.detach(), of, -0.3)
    torch.testing.assert_close(found[0], wanted.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found[1], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("weight", [None, normal(ROWS, seed=4).exp()])
def test_the_gradient_of_squared_errors_is_that_of_autograd(weight: Tensor | None) -> None:
    q, target = normal(2, ROWS).requires_grad_(), normal(ROWS, seed=1)
    wanted = torch.autograd.grad(0.35 * weighted((q - target).square(), weight).sum(), q)[0]
    with torch.no_grad():
        found = squared_error_gradient(target, 0.7, weight)(q)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["mse", "huber"])
def test_the_losses_of_errors_are_torchs_and_so_are_their_derivatives(kind: str) -> None:
    error = (2 * normal(ROWS)).requires_grad_()
    theirs = functional.mse_loss if kind == "mse" else functional.huber_loss
    wanted = theirs(error, torch.zeros_like(error), reduction="none")
    (derivative,) = torch.autograd.grad(wanted.sum(), error)
    found = error_loss(error.detach(), kind)
    torch.testing.assert_close(found[0], wanted.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found[1], derivative, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_an_expected_loss_is_that_of_autograd_also_where_it_contains_log_pi() -> None:
    logits, q = normal(ROWS, 5).requires_grad_(), normal(ROWS, 5, seed=1)
    prob, log_prob = logits.softmax(1), logits.log_softmax(1)
    loss = 0.2 * log_prob - q
    mean = (prob * loss).sum(1, keepdim=True)
    (wanted,) = torch.autograd.grad(mean.sum(), logits)
    found = expected_loss_gradient(*(each.detach() for each in (prob, loss, mean)))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_rows_of_a_batch_are_rows_of_all_its_columns() -> None:
    given = dataclasses.replace(batch(), weight=normal(9), extras={"goal": normal(9, 2)})
    assert given.rows(slice(0, 9)) is given
    some = given.rows(slice(2, 5))
    assert len(some) == 3
    assert torch.equal(some.weight, given.weight[2:5])
    assert torch.equal(some.extras["goal"], given.extras["goal"][2:5])
    assert torch.equal(some.next_obs, given.next_obs[2:5])
    assert batch().rows(slice(2, 5)).weight is None


def test_sums_of_blocks_are_sums_of_the_batch() -> None:
    errors, sums = normal(2, 9), BlockSums()
    for rows in (slice(0, 4), slice(4, 9)):
        sums.add(errors[:, rows], square=errors[:, rows].square())
    assert torch.equal(sums.errors, errors)
    torch.testing.assert_close(sums["square"], errors.square().sum(), rtol=1e-12, atol=0)
