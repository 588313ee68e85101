"""The exact divergence of an adaptive rate, and advantages that are normalised over a whole rollout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions

from offbeat.algorithms.configs import AdaptiveRate
from offbeat.algorithms.torch import appo
from offbeat.algorithms.torch.distributions import Categorical, GaussianHead, MultiCategorical
from small_rollouts import BOX, BRANCHES, CHOICE, MOST, make, moved, rollout

EXACT = AdaptiveRate(desired_kl=0.01, divergence="exact")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("own_std", [True, False])
def test_the_divergence_of_gaussians_is_that_of_torch(own_std: bool) -> None:
    head, (mean, mean0) = GaussianHead(), normal(2, 6, 3)
    log_std, log_std0 = 0.3 * normal(2, 3, seed=1)
    if own_std:
        found, before = head.parameters(mean, log_std), head.parameters(mean0, log_std0)
    else:
        rows = [torch.cat((each, std.expand_as(each)), -1) for each, std in ((mean, log_std), (mean0, log_std0))]
        found, before = (head.parameters(each, mean[:0, 0]) for each in rows)
    pair = [distributions.Normal(each, std.exp()) for each, std in ((mean0, log_std0), (mean, log_std))]
    wanted = distributions.kl_divergence(*pair).sum(-1)
    torch.testing.assert_close(head.divergence(before, found), wanted, rtol=0.0, atol=1e-4)
    # Equal policies are a small positive number apart, not a rounding error of either sign.
    assert (head.divergence(found, found) > 0).all()
    assert head.divergence(found, found).max() < 1e-4


def test_the_divergence_of_choices_is_that_of_torch_and_forbidden_ones_do_not_count() -> None:
    head, (logits, logits0) = Categorical(), normal(2, 6, 4)
    logits[:, 1] = logits0[:, 1] = -torch.inf
    found, before = (head.parameters(each, each[:0, 0]) for each in (logits, logits0))
    pair = [distributions.Categorical(logits=each[:, [0, 2, 3]]) for each in (logits0, logits)]
    torch.testing.assert_close(head.divergence(before, found), distributions.kl_divergence(*pair))


def test_the_divergence_of_several_choices_is_their_sum() -> None:
    head, (logits, logits0) = MultiCategorical((3, 2, 5)), normal(2, 6, 10)
    found, before = (head.parameters(each, each[:0, 0]) for each in (logits, logits0))
    wanted = sum(
        distributions.kl_divergence(distributions.Categorical(logits=old), distributions.Categorical(logits=new))
        for old, new in zip(logits0.split((3, 2, 5), 1), logits.split((3, 2, 5), 1), strict=True)
    )
    torch.testing.assert_close(head.divergence(before, found), wanted)


@pytest.mark.parametrize("spec", [BOX, CHOICE, BRANCHES], ids=["box", "choice", "branches"])
@pytest.mark.parametrize("settings", [{}, {"algorithm": "appo"}, {"algorithm": "appo", "target_every": 4}])
def test_a_turn_adapts_its_rate_by_the_exact_divergence(settings: dict[str, Any], spec: Any) -> None:
    rates = []
    for control in (EXACT, AdaptiveRate(desired_kl=0.01)):
        learner = moved(make(spec=spec, rate_control=control, learning_rate=3e-3, epochs=3, **settings))
        learner.learn_rollout(rollout(learner), np.random.default_rng(0), MOST)
        rates.append(learner.rates()["learning"])
        assert 0.0 < learner.drain()["approx_kl"] < 1.0
    assert all(rate != 3e-3 for rate in rates)


def test_advantages_are_normalised_once_over_the_rollout() -> None:
    whole = moved(make(algorithm="appo", normalise_over="rollout"))
    plain = moved(make(algorithm="appo", normalise_advantages=False))
    steps = whole.steps_of(rollout(whole, older=0.3))
    with torch.inference_mode():
        rows, given = (appo.prepare(each.state, each.config, each.spec, steps) for each in (whole, plain))
        (before,) = given.minibatches(torch.arange(len(given)), 1)
        rows.normalise_advantages()
        (after,) = rows.minibatches(torch.arange(len(rows)), 1)
    wanted = (before.advantage - before.advantage.mean()) / (before.advantage.std() + 1e-8)
    torch.testing.assert_close(after.advantage, wanted, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(after.target, before.target, rtol=0.0, atol=0.0)


def test_where_advantages_are_normalised_changes_what_is_learned() -> None:
    found = []
    for settings in ({}, {"normalise_over": "rollout"}):
        learner = moved(make(**settings))
        learner.learn_rollout(rollout(learner), np.random.default_rng(0), MOST)
        found.append(learner.state.actor.flat.clone())
    assert not torch.equal(*found)
