"""Optimisers against torch's own of the same settings, and the one norm by which several gradients are clipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from offbeat.algorithms.configs import Optimisation
from offbeat.algorithms.torch.optimise import Adam, apply, apply_jointly, make_optimiser
from offbeat.errors import UsageError
from offbeat.settings import make_learner_config
from small_rollouts import make, rollout, turn
from specs import choice_spec, vector_spec

THEIRS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr),
    "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01),
    "rmsprop": lambda parameters, lr: torch.optim.RMSprop(parameters, lr=lr, alpha=0.99, eps=1e-8),
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
}
optimisers = pytest.mark.parametrize("name", THEIRS)


@optimisers
def test_each_optimiser_equals_torchs_own(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(20, generator=generator, dtype=torch.float64)
    theirs = flat.clone().requires_grad_()
    other, own = THEIRS[name]([theirs], 1e-2), make_optimiser(Optimisation(name), flat)
    for step in range(10):
        gradient = torch.randn(20, generator=generator, dtype=torch.float64)
        rate = 1e-2 / (step + 1)  # as a schedule would have it
        theirs.grad = gradient.clone()
        other.param_groups[0]["lr"] = rate
        other.step()
        own.step(flat, gradient, rate)
        torch.testing.assert_close(flat, theirs.detach(), rtol=1e-12, atol=1e-14)


@optimisers
def test_what_an_optimiser_remembers_is_saved_with_the_learner(name: str) -> None:
    straight, first, resumed = (make(optimiser=name, learning_rate=1e-2) for _ in range(3))
    experience = rollout(straight)
    for seed in (1, 2):
        turn(straight, experience, seed=seed)
    turn(first, experience, seed=1)
    resumed.restore(first.arrays())
    turn(resumed, experience, seed=2)
    arrays, remembered = resumed.arrays(), [each for each, _ in resumed.state.actor_optimiser.named()]
    assert {f"actor_optimiser/{each}" for each in remembered} <= arrays.keys()
    assert bool(remembered) == (name != "sgd")
    for each, array in straight.arrays().items():
        np.testing.assert_array_equal(array, arrays[each], err_msg=each)


def test_several_gradients_are_clipped_by_the_norm_of_all_together() -> None:
    flats = [torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    gradients = [torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 4.0], dtype=torch.float64)]
    kept = [gradient.clone() for gradient in gradients]
    parts: list[Any] = [
        (flat, g, make_optimiser(Optimisation("sgd"), flat)) for flat, g in zip(flats, gradients, strict=True)
    ]
    apply_jointly(parts, 1.0, max_norm=1.0)
    torch.testing.assert_close(torch.cat(flats), torch.tensor([-0.6, 0, 0, 0, -0.8]).double(), rtol=1e-6, atol=1e-8)
    assert all(torch.equal(now, before) for now, before in zip(gradients, kept, strict=True))
    for flat in flats:
        flat.zero_()
    for limit in (None, 6.0):  # none, or one above their norm of 5
        apply_jointly(parts, 0.5, max_norm=limit)
    torch.testing.assert_close(torch.cat(flats), -torch.cat(gradients), rtol=0, atol=0)


def test_one_gradient_is_clipped_by_its_own_norm() -> None:
    flat, gradient = torch.zeros(2, dtype=torch.float64), torch.tensor([3.0, 4.0], dtype=torch.float64)
    apply(flat, gradient, make_optimiser(Optimisation("sgd"), flat), 1.0, max_norm=2.5)
    torch.testing.assert_close(flat, -gradient / 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("algorithm", "usual"), [("sac", 1e-8), ("td3", 1e-8), ("dqn", 1e-8), ("ppo", 1e-5)])
def test_adam_epsilon_reaches_every_adam_and_has_the_usual_default_of_each_algorithm(
    algorithm: str, usual: float
) -> None:
    spec = choice_spec() if algorithm == "dqn" else vector_spec()
    for settings, wanted in (({}, usual), ({"adam_epsilon": 1e-3}, 1e-3)):
        state = offbeat.Agent(algorithm, spec, hidden=(4,), **settings).learner.backend.state
        found = [each.epsilon for each in vars(state).values() if isinstance(each, Adam)]
        assert found == [wanted] * len(found) != []


def test_adam_steps_by_its_epsilon() -> None:
    flat, gradient = torch.zeros(2, dtype=torch.float64), torch.tensor([1e-3, 1e-3], dtype=torch.float64)
    Adam(flat, 1e-3).step(flat, gradient, 1.0)
    torch.testing.assert_close(flat, torch.full_like(flat, -0.5), rtol=1e-9, atol=0)


def test_an_epsilon_of_adam_is_refused_where_another_optimiser_learns() -> None:
    with pytest.raises(UsageError, match=r"adam_epsilon=0\.001 has no effect, because optimiser is neither adam nor"):
        make_learner_config("ppo", adam_epsilon=1e-3, optimiser="sgd")
