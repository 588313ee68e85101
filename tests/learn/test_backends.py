"""What every backend does: K updates in a call, restored states, TD errors, weights per row, other columns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from offbeat.types import Batches
from small_backends import BOX, CASES, CHOICE, RATES, ROWS, batches, learn, make, metrics_of, part

backends = pytest.mark.parametrize("backend", ["torch", "jax"])
COMPILED = ("sac", "td3", "dqn")
"""Cases of the default tests on JAX, which compiles each; the others have the same losses."""
cases_and_backends = pytest.mark.parametrize(
    ("case", "backend"),
    [
        pytest.param(case, backend, marks=[pytest.mark.slow] * (backend == "jax" and case not in COMPILED))
        for case in CASES
        for backend in ("torch", "jax")
    ],
)


def backend_of(case: str, backend: str, **settings: Any) -> Any:
    algorithm, spec, own = CASES[case]
    return make(algorithm, spec, backend, **{**own, **settings})


@functools.cache
def _made(case: str, backend: str) -> tuple[Any, dict[str, np.ndarray]]:
    found = backend_of(case, backend)
    return found, found.arrays()


def fresh(case: str, backend: str) -> Any:
    """A backend in its first state; the same object each time, because JAX compiles its updates once for each."""
    found, first = _made(case, backend)
    found.restore(first)
    return found


@cases_and_backends
def test_k_updates_in_one_call_are_k_calls_of_one(case: str, backend: str) -> None:
    given, learner = batches(CASES[case][1], 5), fresh(case, backend)
    at_once, state = learn(learner, given, td_errors=True), learner.arrays()
    metrics, learner = metrics_of(at_once), fresh(case, backend)
    found = [learn(learner, part(given, slice(index, index + 1)), index, td_errors=True) for index in range(5)]
    assert_same(learner.arrays(), state)
    np.testing.assert_array_equal(np.concatenate([each.td_errors for each in found]), at_once.td_errors)
    for name, values in metrics.items():
        assert values == [value for each in map(metrics_of, found) for value in each.get(name, [])]


@cases_and_backends
def test_a_restored_backend_goes_on_as_the_saved_one(case: str, backend: str) -> None:
    given, learner = batches(CASES[case][1], 4), fresh(case, backend)
    learn(learner, part(given, slice(0, 3)), td_errors=True)
    saved = learner.arrays()
    learn(learner, part(given, slice(3, 4)), 3, td_errors=True)
    wanted, resumed = learner.arrays(), fresh(case, backend)
    resumed.restore(saved)
    learn(resumed, part(given, slice(3, 4)), 3, td_errors=True)
    assert_same(resumed.arrays(), wanted)
    assert set(learner.networks) <= {name.split("/")[0] for name in saved}


def assert_same(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


WITH_WEIGHTS = [(case, "torch") for case in CASES] + [("dqn", "jax")]
"""The others on JAX are compared with torch, with weights and without, in test_jax_agrees."""


@pytest.mark.parametrize(("case", "backend"), WITH_WEIGHTS)
def test_td_errors_are_given_where_they_are_asked_for_and_weights_scale_the_loss(case: str, backend: str) -> None:
    """With weights of 1 / 2 the critic's loss is half of what it was, and with rows of weight 0 these do not count."""
    given, learner = batches(CASES[case][1], 1), backend_of(case, backend, optimiser="sgd")
    before = learner.arrays()

    def gradient() -> np.ndarray:
        """Of the critics' loss in the only update since `before`."""
        after = learner.arrays()
        names = [name for name in after if name.startswith("critic/")]
        return np.concatenate([(before[name] - after[name]).ravel() for name in names]) / RATES["critic"]

    whole, of_whole = learn(learner, given, td_errors=True), gradient()
    assert whole.td_errors.shape == (1, ROWS)
    assert (whole.td_errors >= 0).all()
    assert whole.td_errors.max() > 0
    found, gradients = [], []
    for weight in (np.full((1, ROWS), 0.5), np.repeat([[2.0, 0.0]], ROWS // 2, 1)):
        learner.restore(before)
        found.append(learn(learner, Batches(given.columns, given.rows, weight), td_errors=True))
        gradients.append(gradient())
        np.testing.assert_allclose(found[-1].td_errors, whole.td_errors, rtol=1e-13)
    name = "loss" if "loss" in whole.metrics else "critic_loss"
    losses = [float(each.metrics[name][0]) for each in (whole, found[0])]
    assert losses[1] == pytest.approx(0.5 * losses[0])
    np.testing.assert_allclose(of_whole * 0.5, gradients[0], atol=1e-12)
    if "dropout" in case:
        return  # it leaves out other units for another number of rows
    learner, rows = backend_of(case, backend, optimiser="sgd", batch_size=ROWS // 2), ROWS // 2
    half = {name: column[:, :rows] for name, column in given.columns.items()}
    draws = first_rows_of_noise(case, np.random.default_rng(8), rows)
    learner.update(Batches(half, given.rows[:, :rows]), draws, [RATES], updates=0, seed=3, td_errors=True)
    np.testing.assert_allclose(gradient(), gradients[1], atol=1e-12)


def first_rows_of_noise(case: str, rng: np.random.Generator, rows: int) -> np.ndarray:
    """The noise of `learn` for the first rows of the batch."""
    shape = backend_of(case, "torch").noise_shape
    draws = rng.standard_normal((1, *shape))
    if case == "redq":  # noise at s, noise at s', and one draw for each critic
        at_both = draws[0, :-3].reshape(2, ROWS, 2)[:, :rows]
        return np.concatenate((at_both.ravel(), draws[0, -3:]))[None]
    return draws[:, :, :rows] if len(shape) == 3 else draws[:, :rows]


@backends
def test_other_columns_reach_the_algorithm_as_extras(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, seen = backend_of("dqn", backend), []
    plain = learner.module.update
    monkeypatch.setattr(learner.module, "update", lambda *given: seen.append(given[3].extras) or plain(*given))
    learn(
        learner, batches(CHOICE, 2, goal=np.arange(2 * ROWS * 3).reshape(2, ROWS, 3), expert=np.ones((2, ROWS), bool))
    )
    assert len(seen) > 1
    for extras in seen:
        found = {name: (str(each.dtype).removeprefix("torch."), tuple(each.shape)) for name, each in extras.items()}
        assert found == {"goal": ("int64", (ROWS, 3)), "expert": ("bool", (ROWS,))}


@backends
def test_batches_of_sequences_are_refused(backend: str) -> None:
    given = batches(BOX, 1)
    with pytest.raises(ValueError, match=r"batches\.valid is set"):
        learn(backend_of("td3", backend), Batches(given.columns, given.rows, valid=np.ones((1, ROWS), bool)))


@backends
def test_td_errors_are_not_computed_where_they_are_not_asked_for(backend: str) -> None:
    assert learn(backend_of("dqn", backend), batches(CASES["dqn"][1], 2)).td_errors is None
