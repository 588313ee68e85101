"""The JAX backend: compiled updates are right, buffers are not overwritten while they are read, dropout repeats."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from offbeat.errors import OffbeatError
from offbeat.learn.jax_staging import Staging
from offbeat.types import Batches
from small_backends import BOX, CASES, CHOICE, ROWS, STATE, batches, learn, make, metrics_of, part, same

PLAIN: dict[str, Any] = {"optimiser": "sgd", "target_every": 1, "tau": 0.5}
LARGE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "sac": ("sac", STATE, {}),
    "sac of choices": ("sac", CHOICE, {}),
    "redq": ("redq", STATE, {"critics": 2, "target_subset": 1, "actor_every": 1}),
    "td3": ("td3", STATE, {"actor_every": 1}),
    "ddpg": ("ddpg", STATE, {}),
    "dqn": ("dqn", CHOICE, {"dueling": True, "max_grad_norm": 1.0}),
}
STEPS = [{"actor": 1.0, "critic": 1.0, "temperature": 1.0}]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(each, marks=[pytest.mark.slow] if each in ("redq", "ddpg", "sac of choices") else [])
        for each in LARGE
    ],
)
def test_compiled_gradients_are_those_of_single_operations(case: str) -> None:
    """At the usual sizes, where XLA may use other kernels. A step of gradient descent at rate 1 is the gradient."""
    algorithm, spec, settings = LARGE[case]
    given, states, found = batches(spec, 1, 256), [], []
    for compiled in (True, False):
        learner = make(algorithm, spec, "jax", "float32", hidden=(256, 256), batch_size=256, **PLAIN, **settings)
        noise = np.random.default_rng(8).standard_normal((1, *learner.noise_shape))
        with jax.disable_jit(not compiled):
            found.append(learner.update(given, noise, STEPS, updates=0, seed=3, td_errors=True))
        states.append(learner.arrays())
    close = {"rtol": 1e-5, "atol": 2e-6}
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], **close, err_msg=name)
    np.testing.assert_allclose(found[0].td_errors, found[1].td_errors, **close, err_msg="td errors")
    for name, values in metrics_of(found[0]).items():
        np.testing.assert_allclose(values, metrics_of(found[1])[name], **close, err_msg=name)


def test_a_buffer_is_written_again_only_after_what_read_it_has_ended() -> None:
    device = jax.devices("cpu")[0]
    values = [np.random.default_rng(seed).uniform(-1.0, 1.0, (1, 128, 128)).astype(np.float32) for seed in range(6)]
    staging = Staging({"x": values[0]}, 1, np.dtype(np.float32), device)
    # Reads its input in the last of many steps too.
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 500, lambda _, y: jnp.tanh(y @ x), x).sum())
    alone = [float(slow(jnp.array(value[0]))) for value in values]
    results: list[Any] = []
    for value in values:
        arrays = staging.put({"x": value})
        assert all(each.is_ready() for each in results[:-1])
        results.append(slow(arrays["x"][0]))
        staging.used_by(results[-1])
    assert [float(each) for each in results] == alone


def test_what_is_written_into_the_given_arrays_after_an_update_does_not_matter() -> None:
    every, states = batches(BOX, 12, 256), []
    for spoil in (False, True):
        learner = make("td3", BOX, "jax", "float32", hidden=(64, 64), batch_size=256)
        for start in range(0, 12, 2):
            given = part(every, slice(start, start + 2))
            given = Batches({name: column.copy() for name, column in given.columns.items()}, given.rows)
            draws = np.random.default_rng(start).standard_normal((2, *learner.noise_shape))
            result = learner.update(given, draws, STEPS * 2, updates=start, seed=start, td_errors=False)
            if spoil:
                for column in (*given.columns.values(), draws):
                    column[:] = np.nan
            else:
                metrics_of(result)  # waits
        states.append(learner.arrays())
    for name, array in states[0].items():
        assert np.isfinite(array).all()
        np.testing.assert_array_equal(array, states[1][name], err_msg=name)


def test_dropout_repeats_with_its_seed_and_leaves_out_other_units_with_another() -> None:
    given, found = batches(BOX, 2), []
    learner = make("sac", BOX, "jax", **CASES["sac with dropout"][2])
    first = learner.arrays()
    for seed in (3, 3, 4):
        learner.restore(first)
        learn(learner, given, seed=seed, td_errors=True)
        found.append(learner.arrays()["critic/0/weight"])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    # In a call of its own, the second update has the seed after the first one's.
    learner.restore(first)
    for index in range(2):
        learn(learner, part(given, slice(index, index + 1)), index, seed=3 + index, td_errors=True)
    np.testing.assert_array_equal(learner.arrays()["critic/0/weight"], found[0])


def test_a_column_of_whole_numbers_may_become_one_of_fractions() -> None:
    device, whole, fractions = jax.devices("cpu")[0], np.array([[1], [2]]), np.array([[0.5], [1.5]])
    staging = Staging({"x": whole}, 2, np.dtype(np.float32), device)
    assert staging.fits({"x": whole}, 2)
    assert staging.fits({"x": whole.astype(np.int32)}, 2)
    assert not staging.fits({"x": fractions}, 2)
    given, found = batches(BOX, 2), []
    for first in (given.columns["obs"], given.columns["obs"].astype(np.int64)):
        learner = make("td3", BOX, "jax")
        before = learner.arrays()
        learn(learner, Batches({**given.columns, "obs": first}, given.rows))
        learner.restore(before)
        learn(learner, given)
        found.append(learner)
    assert same(*found)


def test_a_period_beyond_32_bits_never_ends() -> None:
    periods = {"target_every": 2**31, "actor_every": 3 * 10**9}
    learner = make("td3", BOX, "jax", "float32", **periods, tau=1.0)
    before = learner.arrays()
    found = metrics_of(learn(learner, batches(BOX, 2)))
    after = learner.arrays()
    assert found.keys() == {"critic_loss", "q"}
    for name, array in before.items():
        assert np.array_equal(array, after[name]) == name.startswith(("actor", "target")), name


def test_more_updates_than_jax_counts_are_refused_in_words() -> None:
    learner, given = make("td3", BOX, "jax"), batches(BOX, 2)
    draws = np.zeros((2, *learner.noise_shape))
    with pytest.raises(OffbeatError, match=r"2,147,483,647 updates.*offbeat convert RUN --backend torch"):
        learner.update(given, draws, STEPS * 2, updates=2**31 - 2, seed=0, td_errors=False)


def test_td_errors_of_any_number_of_updates_compile_nothing_new() -> None:
    learner, given = make("td3", BOX, "jax"), batches(BOX, 5)
    learn(learner, given, td_errors=True)
    with jax.no_tracing():
        for count in (1, 2, 3, 4):
            found = learn(learner, part(given, slice(count)), td_errors=True)
            assert found.td_errors is not None
            assert found.td_errors.shape == (count, ROWS)
