"""An algorithm of a user's own in JAX: what it may get wrong, and the value, rule and remedy in the error."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from driven_learner import Learner
from offbeat.algorithms.jax import make_optimiser, minimise
from offbeat.algorithms.registry import find
from offbeat.errors import OffbeatError, UsageError
from offbeat.settings import make_learner_config
from own_parts import expectile_jax
from own_parts.expectile import ALGORITHM
from small_agents import agent, observed, updated
from specs import random_transitions, vector_spec


def functions(**changes: Any) -> Any:
    """The algorithm with some of its functions replaced; it is written for JAX alone."""
    own = {name: getattr(expectile_jax, name) for name in ("init", "update", "policy_description")} | changes
    return dataclasses.replace(ALGORITHM, name="wrong", modules={"jax": SimpleNamespace(**own)})


def made(algorithm: Any, **settings: Any) -> Any:
    return agent(algorithm, backend="jax", **settings)


def init_with(**changes: Any) -> Any:
    return lambda *arguments: {**expectile_jax.init(*arguments), **changes}


def test_both_files_of_the_algorithm_make_the_same_updates() -> None:
    learners = []
    for backend in ("torch", "jax"):
        config = make_learner_config(ALGORITHM, hidden=(8,), batch_size=6, max_grad_norm=0.5)
        key, rng = find(ALGORITHM).name, np.random.default_rng(1)
        learner = Learner(key, config, vector_spec(3, 2), rng=rng, precision="float64", backend=backend)
        if backend == "torch":
            learner.backend._autograd = True
        draws = np.random.default_rng(2)
        for _ in range(3):
            learner.update_once(random_transitions(draws, learner.spec, 6, np.float64), np.zeros(()), draws.random(6))
        learners.append(learner)
    theirs = learners[1].arrays()
    assert learners[0].arrays().keys() == theirs.keys()
    for name, array in learners[0].arrays().items():
        np.testing.assert_allclose(theirs[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (functions(init=lambda *arguments: None), "init of the algorithm returned None; return the state"),
        (functions(init=lambda *arguments: {}), r"has no network 'actor' to act with, but \[\]; name one so"),
        (functions(init=init_with(count=3)), "count is 3: a number in an algorithm's state would not be saved"),
        (functions(init=init_with(text=["a"])), "text/0 is a str, which cannot be saved; use arrays, networks"),
        (functions(noise_shape=lambda config, spec: "B"), "noise_shape returned 'B'; return a tuple of whole numbers"),
        (
            functions(init=lambda config, *others: config.nothing),
            "init reads config.nothing, but Expectile has no",
        ),
        (
            functions(policy_description=lambda config, spec: {"kind": "deterministic", "activation": "tanh"}),
            "with activation='tanh' computes other outputs than the network that acts",
        ),
    ],
)
def test_an_algorithm_that_cannot_run_is_refused_when_it_is_made(algorithm: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(algorithm)


def test_an_algorithm_for_jax_alone_names_its_backend() -> None:
    with pytest.raises(UsageError, match="backend='torch' does not have wrong; use jax"):
        agent(functions())
    updated(made(functions()))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda state, batch: None, r"update returned a NoneType, None; return \(state, metrics, td_errors\)"),
        (lambda state, batch: ({}, batch.reward), r"update returned a tuple, .*; return \(state, metrics, td_errors\)"),
        (lambda state, batch: (state, {"reward": batch.reward}, batch.reward), r"returned the metric reward \(4,\)"),
        (lambda state, batch: (state, {}, None), "returned TD errors NoneType for a batch of 4"),
        (lambda state, batch: (state, {}, batch.obs), r"returned TD errors \(4, 3\) for a batch of 4"),
        (
            lambda state, batch: (state, {}, batch.reward[:, None] - batch.reward),
            r"TD errors \(4, 4\) .* drop the column with \[:, 0\]",
        ),
        (lambda state, batch: (None, {}, batch.reward), "actor of the state was a network of .* and is missing now"),
        (lambda state, batch: (state | {"mean": jnp.zeros(())}, {}, batch.reward), "update added mean to the state"),
        (lambda state, batch: (state | {"kept": 3}, {}, batch.reward), "kept is 3: a number in an algorithm's state"),
        (
            lambda state, batch: (state | {"kept": jnp.zeros(3)}, {}, batch.reward),
            r"kept of the state was \(2,\) of float32 after init and is \(3,\) of float32 now; keep its shape",
        ),
        (
            lambda state, batch: (state | {"kept": jnp.zeros(2, int)}, {}, batch.reward),
            r"kept of the state was \(2,\) of float32 after init and is \(2,\) of int32 now; keep .* its type",
        ),
        (
            lambda state, batch: (state | {"steps": tuple(state["steps"].values())}, {}, batch.reward),
            "update added steps/0 to the state; create it in init",
        ),
    ],
)
def test_what_an_update_returns_is_checked_before_it_is_compiled(result: Any, words: str) -> None:
    own = functions(
        init=init_with(kept=np.zeros(2, np.float32)),
        update=lambda state, config, spec, batch, *others: result(state, batch),
    )
    with pytest.raises(OffbeatError, match=words):
        updated(made(own))


def test_metrics_may_be_arrays_or_numbers() -> None:
    def update(state: Any, config: Any, spec: Any, batch: Any, *others: Any) -> Any:
        return (
            state,
            {"plain": 1.5, "numpy": np.float32(1.5), "array": batch.reward[0], "row": batch.reward[:1]},
            batch.reward,
        )

    one = made(functions(update=update))
    observed(one)
    assert one.update(2) == {"plain": 1.5, "numpy": 1.5, "array": 1.0, "row": 1.0}


def test_a_learning_rate_that_no_group_has_is_named() -> None:
    one = made(functions(update=lambda state, config, spec, batch, noise, rates, updates: rates["q"]))
    with pytest.raises(OffbeatError, match=r"update reads rates\['q'\], but groups .* has only actor, critic; add it"):
        updated(one)


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    def update(state: Any, config: Any, spec: Any, batch: Any, noise: Any, rates: Any, updates: Any) -> Any:
        minimise(lambda actor: actor(batch.obs), state["actor"], state["steps"]["actor"], rates["actor"])

    with pytest.raises(OffbeatError, match=r"the loss has the shape \(4, 2\), but must be one number: use its mean"):
        updated(made(functions(update=update)))


def test_a_number_learns_and_is_saved(tmp_path: Any) -> None:
    def init(config: Any, *others: Any) -> Any:
        log_eta = np.zeros((), np.float32)
        state = expectile_jax.init(config, *others)
        return state | {"log_eta": log_eta, "eta_step": make_optimiser(config.optimisation, log_eta)}

    def update(state: Any, config: Any, spec: Any, batch: Any, noise: Any, rates: Any, updates: Any) -> Any:
        log_eta, step, loss, _ = minimise(jnp.exp, state["log_eta"], state["eta_step"], rates["actor"])
        return state | {"log_eta": log_eta, "eta_step": step}, {"eta": loss}, batch.reward

    own = functions(init=init, update=update)
    first, second = (made(own, actor_learning_rate=0.01) for _ in range(2))
    updated(first, 2)
    assert float(first.learner.arrays()["log_eta"]) == pytest.approx(-0.02, rel=1e-3)  # Adam: twice the rate
    first.save(tmp_path)
    second.load(tmp_path)
    assert second.learner.arrays()["log_eta"] == first.learner.arrays()["log_eta"]
