"""The learner over its backend: K batches in a call, TD errors, importance weights, metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from backends import backends_of
from driven_learner import Learner, stack
from offbeat.algorithms.registry import kind_of_actions
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec
from specs import Transitions, choice_spec, random_transitions, vector_spec

ROWS, COUNT = 16, 6
CASES: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "sac": ("sac", vector_spec(5, 2, state=3), {"actor_schedule": "linear", "temperature_schedule": "cosine"}),
    "sac with dropout": ("sac", vector_spec(5, 2), {"critic_dropout": 0.2, "critic_schedule": "linear"}),
    "sac of choices": ("sac", choice_spec(5, 3), {"critic_schedule": "cosine"}),
    "redq": ("redq", vector_spec(5, 2), {"actor_every": 2, "actor_schedule": "cosine"}),
    "td3": ("td3", vector_spec(5, 2), {"critic_schedule": "linear", "max_grad_norm": 1.0}),
    "ddpg": ("ddpg", vector_spec(5, 2), {"actor_schedule": "linear"}),
    "dqn": ("dqn", choice_spec(5, 3), {"schedule": "linear", "target_every": 2, "tau": 0.5}),
}


def on_both(*on_jax: str) -> Any:
    """Every case in torch, and some on JAX, where each is compiled; in the default tests, one of them."""
    slow = {(case, "jax"): pytest.mark.slow for case in on_jax if case != "dqn"}
    found = [
        pytest.param(case, backend, id=f"{case}-{backend}", marks=slow.get((case, backend), ()))
        for case, (algorithm, spec, _) in CASES.items()
        for backend in backends_of(algorithm, kind_of_actions(spec))
        if backend == "torch" or case in on_jax
    ]
    return pytest.mark.parametrize(("case", "backend"), found)


def make(case: str, backend: str = "torch", **settings: Any) -> Learner:
    algorithm, spec, own = CASES[case]
    config = make_learner_config(algorithm, **{"hidden": (8, 8), "batch_size": ROWS, **own, **settings})
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {"planned_updates": 2 * COUNT, "precision": "float64", "backend": backend}
    return Learner(algorithm, config, spec, rng=rng, **options)


def drawn(learner: Learner, count: int = COUNT) -> tuple[list[Transitions], np.ndarray]:
    rng = np.random.default_rng(7)
    given = [random_transitions(rng, learner.spec, ROWS, np.float64) for _ in range(count)]
    return given, rng.standard_normal((count, *learner.noise_shape))


def check_same(left: Learner, right: Learner) -> None:
    assert left.updates == right.updates
    others = right.arrays()
    for name, array in left.arrays().items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@on_both("sac with dropout", "sac of choices", "td3", "dqn")
@pytest.mark.parametrize("sizes", [(6,), (2, 4), (5, 1)])
def test_k_batches_in_one_call_are_k_calls_with_one(case: str, backend: str, sizes: tuple[int, ...]) -> None:
    grouped, one_by_one = make(case, backend), make(case, backend)
    given, noise = drawn(grouped)
    weight = np.random.default_rng(3).uniform(0.5, 1.5, (COUNT, ROWS))
    errors, begin = [], 0
    for size in sizes:
        part = slice(begin, begin + size)
        errors.append(grouped.update(stack(given[part], weight[part]), noise[part], td_errors=True))
        begin += size
    singly = [one_by_one.update_once(given[each], noise[each], weight[each]) for each in range(COUNT)]
    check_same(grouped, one_by_one)
    np.testing.assert_array_equal(np.concatenate(errors), np.stack(singly))
    assert grouped.pending() == one_by_one.pending()
    assert grouped.drain() == one_by_one.drain()


@on_both("dqn")
def test_td_errors_are_given_only_where_they_are_asked_for_and_change_nothing(case: str, backend: str) -> None:
    asked, other = make(case, backend), make(case, backend)
    given, noise = drawn(asked)
    errors = asked.update(stack(given), noise, td_errors=True)
    assert other.update(stack(given), noise) is None
    assert errors is not None
    assert errors.shape == (COUNT, ROWS)
    assert (errors >= 0).all()
    assert errors.max() > 0
    check_same(asked, other)


def test_td_errors_are_those_of_the_written_out_target_with_scaled_rewards() -> None:
    learner = make("dqn", reward_scale=3.0)
    learner.state.target.flat.mul_(1.5)
    (batch,), noise = drawn(learner, 1)
    critic, target = learner.state.critic.module, learner.state.target.module
    obs, next_obs = torch.from_numpy(batch.obs), torch.from_numpy(batch.next_obs)
    rows = torch.arange(ROWS)
    with torch.no_grad():
        taken = critic(obs)[rows, torch.from_numpy(batch.action[:, 0]).long()]
        following = target(next_obs)[rows, critic(next_obs).argmax(1)]
    wanted = np.abs(taken.numpy() - (3.0 * batch.reward + batch.discount * following.numpy()))
    np.testing.assert_allclose(learner.update_once(batch, noise[0]), wanted, rtol=1e-10)


RATE_OF_ONE = {
    **{name: {"critic_learning_rate": 1.0, "critic_schedule": "constant"} for name in ("sac", "redq", "td3", "ddpg")},
    "dqn": {"learning_rate": 1.0, "schedule": "constant"},
}


def _critic(learner: Learner) -> np.ndarray:
    found = learner.arrays()
    return np.concatenate([found[name].ravel() for name in sorted(found) if name.startswith("critic/")])


@on_both("sac", "sac of choices", "td3", "dqn")
def test_weights_multiply_each_rows_share_of_the_critics_gradient(case: str, backend: str) -> None:
    """The gradient is linear in the weights. TD errors, by which rows are drawn again, do not depend on them."""
    weight = np.random.default_rng(3).uniform(0.5, 1.5, ROWS)
    gradients, errors, losses = [], [], []
    for each in (None, np.ones(ROWS), weight, 2.0 - weight, np.zeros(ROWS)):
        # With plain steps of rate 1, a step is the gradient; the critic has one that other losses do not share.
        learner = make(case, backend, max_grad_norm=None, optimiser="sgd", **RATE_OF_ONE[CASES[case][0]])
        (batch,), noise = drawn(learner, 1)
        before = _critic(learner)
        errors.append(learner.update_once(batch, noise[0], each))
        gradients.append(before - _critic(learner))
        metrics = learner.drain()
        losses.append(metrics["loss" if "loss" in metrics else "critic_loss"])
    plain, ones, some, others, none = gradients
    np.testing.assert_allclose(ones, plain, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(some + others, 2.0 * plain, rtol=1e-9, atol=1e-12)
    assert np.abs(some - plain).max() > 1e-6
    assert np.abs(none).max() == 0.0
    assert losses[2] + losses[3] == pytest.approx(2.0 * losses[0])
    for each in errors[1:]:
        np.testing.assert_array_equal(each, errors[0])


@pytest.mark.parametrize("backend", backends_of("td3"))
def test_metrics_that_were_not_drained_go_on_after_a_restore(backend: str) -> None:
    straight, first, resumed = (make("td3", backend) for _ in range(3))
    given, noise = drawn(straight)
    straight.update(stack(given), noise)
    first.update(stack(given[:3]), noise[:3])
    resumed.restore(first.arrays())
    resumed.restore_pending(first.pending())
    resumed.update(stack(given[3:]), noise[3:])
    found, wanted = resumed.drain(), straight.drain()
    assert found == pytest.approx(wanted, rel=1e-12)
    assert "actor_loss" in found, "the delayed actor's metrics are means over its own updates"
