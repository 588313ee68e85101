"""PPO and APPO in JAX against torch: the same weights, rollouts and orders give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from driven_learner import Learner
from offbeat import flat
from offbeat.algorithms.jax import appo
from offbeat.algorithms.jax.returns import vtrace
from offbeat.algorithms.jax.rollout import Minibatch
from offbeat.algorithms.torch import returns
from offbeat.types import Array, EnvSpec, RolloutBatch
from small_rollouts import BOX, BRANCHES, CHOICE, MOST, STATE, make, moved, rollout, turn

STEPS = 12
MASKED_CHOICE, MASKED_BRANCHES = (replace(each, mask_key="mask", mask_from="info") for each in (CHOICE, BRANCHES))


@dataclass(frozen=True)
class Case:
    """A learner's settings, and how its rollouts differ from those of its own policy without gaps."""

    algorithm: str
    spec: EnvSpec
    settings: dict[str, Any]
    rollouts: dict[str, Any] = field(default_factory=lambda: {"older": 0.3, "gaps": 0.2, "breaks": 0.1})


ADAPTIVE: dict[str, Any] = {"rate_control": "adaptive", "learning_rate": 3e-3}
EXACT: dict[str, Any] = {**ADAPTIVE, "rate_control_divergence": "exact"}
SCHEDULED: dict[str, Any] = {"clip_schedule": "linear", "entropy_schedule": "linear", "entropy_coefficient": 0.05}
CASES = {
    "plain": Case("ppo", BOX, {"minibatches": 5, "value_clip": 0.1, **EXACT}, {"ends": 0.8}),
    "scheduled": Case("ppo", STATE, {**SCHEDULED, "layer_norm": True, "max_grad_norm": None, "optimiser": "rmsprop"}),
    "squashed": Case("appo", BOX, {"squash": True, "critic_hidden": (12, 8), "normalise_over": "rollout"}),
    "dependent": Case("ppo", BOX, {"state_dependent_std": True, "initial_log_std": -0.5, "squash": True, **EXACT}),
    "masked branches": Case(
        "appo", MASKED_BRANCHES, {**EXACT, "rho_bar": 1.2, "c_bar": 0.8, "entropy_coefficient": 0.1}
    ),
    "masked, one row each": Case("ppo", MASKED_CHOICE, {**EXACT, "entropy_coefficient": 0.1, "minibatches": 64}),
    "target": Case(
        "appo",
        BOX,
        {"normalise_advantages": False, "target_every": 3, "tau": 0.5, "ratio_cap": 1.1, "advantage_rho_bar": 1.1},
    ),
    "stops": Case("appo", BOX, {**ADAPTIVE, "target_kl": 0.002}, {"gaps": 0.1}),
    "target stops": Case("appo", CHOICE, {"target_kl": 0.003, "target_every": 2, "learning_rate": 0.1, "tau": 0.7}, {}),
}
SINGLE = ("scheduled", "stops")
"""Cases that are compared in float32 too."""


def learners(case: Case, precision: str = "float64") -> tuple[Learner, Learner]:
    """The same learner in torch and in JAX, after their first weights were moved by the same."""
    settings = {"hidden": (8,), "rollout_steps": STEPS, "minibatches": 4, **case.settings}
    ours = make(case.algorithm, case.spec, precision, **settings)
    theirs = Learner(
        case.algorithm, ours.config, case.spec, rng=np.random.default_rng(1), precision=precision, backend="jax"
    )
    ours.planned_updates = theirs.planned_updates = 40
    assert_same(ours.arrays(), theirs.arrays(), 0.0)
    moved(ours)
    theirs.restore(ours.arrays())
    return ours, theirs


def rollouts(case: Case, learner: Learner) -> Iterator[RolloutBatch]:
    """Rollouts of the learner's policy as it then is, the second of them shorter."""
    for seed in range(100):
        found = rollout(learner, steps=STEPS if seed != 1 else 7, seed=seed, **case.rollouts)
        if case.spec.mask_size:
            rng = np.random.default_rng(seed)
            mask = rng.random((*found.valid.shape, case.spec.mask_size)) < 0.6
            starts = np.cumsum((0, *case.spec.counts[:-1]))
            np.put_along_axis(mask, starts + found.columns["action"].astype(int), True, -1)
            mask[~found.valid] = False
            found = RolloutBatch({**found.columns, "mask": mask}, found.valid)
        yield found


def assert_same(expected: dict[str, Array], found: dict[str, Array], tolerance: float) -> None:
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
        assert found[name].dtype == array.dtype


def assert_same_metrics(ours: Any, theirs: Any, tolerance: float) -> dict[str, float]:
    expected, found = ours.drain(), theirs.drain()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name
    return expected


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "float64") for name in CASES),
        *(pytest.param(name, "float32", marks=[pytest.mark.slow] * (name != "scheduled")) for name in SINGLE),
    ],
)
def test_torch_and_jax_agree_after_one_update_and_after_several_turns(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appo, "END_ROWS", 5)  # fewer than the ends of these rollouts
    case, tolerance = CASES[name], 1e-9 if precision == "float64" else 1e-5
    ours, theirs = learners(case, precision)
    stops, made = 0.0, 0
    for count, experience in zip((1, MOST, MOST, 3), rollouts(case, ours), strict=False):
        made += (own := turn(ours, experience, count))
        assert turn(theirs, experience, count) == own
        assert_same(ours.arrays(), theirs.arrays(), tolerance)
        stops += assert_same_metrics(ours, theirs, tolerance).get("kl_stops", 0.0)
    assert stops > 0 if "target_kl" in case.settings else made >= 10


def test_vtrace_equals_that_of_torch_and_keeps_episodes_apart() -> None:
    rng, shape = np.random.default_rng(0), (9, 4)
    names = ("behaviour_log_prob", "target_log_prob", "reward", "value", "next_value")
    rows: dict[str, Any] = {name: rng.standard_normal(shape) for name in names}
    rows |= {name: rng.random(shape) < 0.2 for name in ("terminated", "truncated")}
    rows["truncated"][3, 0] = True
    rows["reward"][4, 0] = np.nan  # of the episode after
    settings = {"gamma": 0.9, "lambda_": 0.8, "rho_bar": 1.1, "c_bar": 0.9, "pg_rho_bar": 1.2}
    expected = returns.vtrace(**{name: torch.from_numpy(each) for name, each in rows.items()}, **settings)
    with jax.enable_x64(True):
        found = vtrace(**rows, **settings)
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), 1e-12)
        assert np.isnan(theirs).any()
        assert np.isfinite(theirs[:4, 0]).all()


def minibatch(spec: EnvSpec) -> Minibatch:
    """Random rows, of which the last do not count."""
    rng, rows, size = np.random.default_rng(0), 40, 33
    obs, state = (rng.standard_normal((rows, size), np.float32) for size in (spec.observation_size, spec.state_size))
    share = np.where(np.arange(rows) < size, np.float32(1 / size), np.float32(0.0))
    none: list[Any] = [np.ones((rows, 0), bool), np.zeros((rows, 0), np.float32)]
    numbers = rng.standard_normal((5, rows), np.float32)
    return Minibatch(obs, state, spec.random_actions(rng, rows), *none, share, np.int32(size), *numbers)


@pytest.mark.slow
def test_compiled_gradients_equal_those_that_are_not_compiled() -> None:
    case = CASES["squashed"]
    _, theirs = learners(case, "float32")
    batch, config, spec = minibatch(case.spec), theirs.config, case.spec

    def gradients(state: appo.APPOState, batch: Minibatch) -> Any:
        return appo.actor_gradient(state, config, spec, batch), appo.critic_gradient(state, config, batch)

    with jax.disable_jit():
        expected = gradients(theirs.state, batch)
    found = jax.jit(gradients)(theirs.state, batch)
    jax.tree.map(lambda *two: np.testing.assert_allclose(*two, 1e-5, 1e-6), found, expected)


def test_a_turn_stops_beyond_one_and_a_half_times_the_target_divergence() -> None:
    case = CASES["stops"]
    _, theirs = learners(case, "float32")

    @jax.jit
    def stopped(state: appo.APPOState, target: Any, moved: Any) -> Any:
        config = flat.overlay(theirs.config, {"target_kl": target})
        key, batch = jax.random.key(0), minibatch(case.spec)
        after, values, _, stopped = appo.learn_minibatch(state, config, case.spec, batch, 1e-3, 0, moved, key)
        return stopped, (after.actor.flat != state.actor.flat).any(), values[appo.OF_ACTOR.index("approx_kl")]

    divergence = float(stopped(theirs.state, np.inf, True)[-1])
    for factor, differs, expected in ((1.51, True, True), (1.49, True, False), (1.51, False, False)):
        stops, learned, _ = stopped(theirs.state, divergence / factor, differs)
        assert (bool(stops), bool(learned)) == (expected, not expected)


def test_one_program_serves_rollouts_of_all_numbers_of_rows_and_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, learn = [], appo.learn_rollout
    monkeypatch.setattr(appo, "learn_rollout", lambda *given: compiled.append(1) or learn(*given))
    case = CASES["scheduled"]
    ours, theirs = learners(case, "float32")
    rows, clips = set(), set()
    for count, experience in zip((MOST, MOST, 3, MOST), rollouts(case, ours), strict=False):
        rows.add(int(experience.valid.sum()))
        clips.add(theirs._with_schedules().objective.clip)
        turn(theirs, experience, count)
    assert (len(rows), len(clips), len(compiled)) == (4, 4, 1)
    assert theirs.rate_factor == 1.0, "the rate is rounded to float32 in the program, and must not drift by it"


def test_rows_that_are_not_valid_have_no_effect() -> None:
    case = CASES["squashed"]
    ours, theirs = learners(case, "float32")
    experience, before = next(rollouts(case, ours)), theirs.arrays()
    spoilt = {name: column.copy() for name, column in experience.columns.items()}
    for name in ("obs", "next_obs", "action", "reward", "log_prob"):
        spoilt[name][~experience.valid] = np.nan
    assert not experience.valid.all()
    turn(theirs, experience)
    expected = theirs.arrays()
    theirs.restore(before)
    turn(theirs, RolloutBatch(spoilt, experience.valid))
    assert_same(expected, theirs.arrays(), 0.0)


def test_a_restored_learner_repeats_every_digit() -> None:
    case = CASES["stops"]
    ours, theirs = learners(case, "float32")
    source = rollouts(case, ours)
    turn(theirs, next(source))
    before, experience = theirs.arrays(), next(source)
    made, expected = turn(theirs, experience), theirs.arrays()
    turn(theirs, next(source))
    theirs.restore(before)
    assert turn(theirs, experience) == made
    assert_same(expected, theirs.arrays(), 0.0)
