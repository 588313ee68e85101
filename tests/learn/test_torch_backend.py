"""The torch backend: K updates in a call, the state by name, torch's learning-rate schedulers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.algorithms.registry import find
from offbeat.algorithms.torch.optimise import Adam
from offbeat.errors import UsageError
from offbeat.learn.backend import Backend
from offbeat.learn.torch import TorchBackend
from offbeat.learn.torch_state import state_tensors
from offbeat.settings import make_learner_config
from offbeat.types import Batches, EnvSpec, RolloutBatch
from small_rollouts import make as make_of_rollouts
from small_rollouts import rollout, turn
from specs import choice_spec, random_transitions, vector_spec

BOX, STATE, CHOICE = vector_spec(5, 2), vector_spec(5, 2, state=3), choice_spec(5, 3)
ROWS = 16
CASES: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "sac": ("sac", STATE, {}),
    "sac with dropout": ("sac", BOX, {"critic_dropout": 0.2, "layer_norm": True}),
    "sac of choices": ("sac", CHOICE, {}),
    "redq": ("redq", BOX, {"actor_every": 2}),
    "td3": ("td3", BOX, {}),
    "dqn": ("dqn", CHOICE, {}),
}
cases = pytest.mark.parametrize("case", CASES)
GROUPS = ("actor", "critic", "temperature")


def backend(case: str, **settings: Any) -> TorchBackend:
    algorithm, spec, own = CASES[case]
    config = make_learner_config(algorithm, **{"hidden": (8, 8), "batch_size": ROWS, **own, **settings})
    record, rng = find(algorithm), np.random.default_rng(1)
    module = record.module("torch", spec)
    found = TorchBackend(module, config, spec, rng=rng, precision="float64", acts_with=record.acts_with)
    checked: Backend = found
    assert checked.name == "torch"
    return found


def batches(spec: EnvSpec, count: int, **extras: np.ndarray) -> Batches:
    rng = np.random.default_rng(7)
    each = [random_transitions(rng, spec, ROWS, np.float64) for _ in range(count)]
    names = ["obs", "action", "reward", "discount", "next_obs", *(("state", "next_state") if spec.state_size else ())]
    columns = {name: np.stack([getattr(batch, name) for batch in each]) for name in names}
    return Batches({**columns, **extras}, np.zeros((count, ROWS), np.int64))


def learn(learner: TorchBackend, given: Batches, updates: int = 0, **named: Any) -> Any:
    draws = np.random.default_rng(8).standard_normal((updates + len(given), *learner.noise_shape))[updates:]
    rates = [dict.fromkeys(GROUPS, 1e-2)] * len(given)
    return learner.update(given, draws, rates, updates=updates, seed=3 + updates, **{"td_errors": False, **named})


def part(given: Batches, rows: slice) -> Batches:
    weight = None if given.weight is None else given.weight[rows]
    return Batches({name: column[rows] for name, column in given.columns.items()}, given.rows[rows], weight)


def same(left: TorchBackend, right: TorchBackend) -> bool:
    return all(np.array_equal(array, right.arrays()[name]) for name, array in left.arrays().items())


@cases
def test_k_updates_in_one_call_are_k_calls_of_one(case: str) -> None:
    at_once, one_by_one, given = backend(case), backend(case), batches(CASES[case][1], 5)
    whole = learn(at_once, given)
    found = [learn(one_by_one, part(given, slice(index, index + 1)), index) for index in range(5)]
    assert same(at_once, one_by_one)
    for name, values in whole.metrics.items():
        assert [float(value) for value in values] == [float(value) for each in found for value in each.metrics[name]]
    assert whole.td_errors is None


@cases
def test_a_restored_backend_goes_on_as_the_saved_one(case: str) -> None:
    straight, first, resumed, given = *(backend(case) for _ in range(3)), batches(CASES[case][1], 4)
    learn(straight, given)
    learn(first, part(given, slice(0, 3)))
    resumed.restore(first.arrays())
    learn(resumed, part(given, slice(3, 4)), 3)
    assert same(straight, resumed)
    assert set(first.networks) <= {name.split("/")[0] for name in first.arrays()}


@cases
def test_td_errors_are_given_where_they_are_asked_for_and_weights_scale_the_loss(case: str) -> None:
    """With weights of 1 / 2 the critic's loss is half of what it was, and with rows of weight 0 these do not count."""
    given = batches(CASES[case][1], 1)
    plain, halved, first_half = (backend(case) for _ in range(3))
    whole = learn(plain, given, td_errors=True)
    assert whole.td_errors.shape == (1, ROWS)
    assert (whole.td_errors >= 0).all()
    assert whole.td_errors.max() > 0
    weighted = [np.full((1, ROWS), 0.5), np.repeat([[2.0, 0.0]], ROWS // 2, 1)]
    found = [
        learn(each, Batches(given.columns, given.rows, weight), td_errors=True)
        for each, weight in zip((halved, first_half), weighted, strict=True)
    ]
    name = "loss" if "loss" in whole.metrics else "critic_loss"
    losses = [float(each.metrics[name][0]) for each in (whole, found[0])]
    assert losses[1] == pytest.approx(0.5 * losses[0])
    np.testing.assert_allclose(plain.state.critic.gradient * 0.5, halved.state.critic.gradient, atol=1e-12)
    for each in found:
        np.testing.assert_array_equal(each.td_errors, whole.td_errors)
    if not first_half.state.critic.explicit:
        return  # dropout leaves out other units for another number of rows
    alone, rows = backend(case, batch_size=ROWS // 2), ROWS // 2
    half = {name: column[:, :rows] for name, column in given.columns.items()}
    draws = np.random.default_rng(8).standard_normal((1, *first_half.noise_shape))
    if draws.ndim == 4:
        draws = draws[:, :, :rows]
    elif case == "td3":
        draws = draws[:, :rows]
    elif case == "redq":  # noise at s, noise at s', and one draw for each critic
        at_both = draws[0, :-10].reshape(2, ROWS, 2)[:, :rows]
        draws = np.concatenate((at_both.ravel(), draws[0, -10:]))[None]
    rates = [dict.fromkeys(GROUPS, 1e-2)]
    alone.update(Batches(half, given.rows[:, :rows]), draws, rates, updates=0, seed=3, td_errors=False)
    np.testing.assert_allclose(alone.state.critic.gradient, first_half.state.critic.gradient, atol=1e-12)


def test_other_columns_reach_the_algorithm_as_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, seen = backend("td3"), []
    plain = learner.module.update
    monkeypatch.setattr(learner.module, "update", lambda *given: seen.append(given[3].extras) or plain(*given))
    learn(learner, batches(BOX, 2, goal=np.arange(2 * ROWS * 3).reshape(2, ROWS, 3), expert=np.ones((2, ROWS), bool)))
    assert [{name: (each.dtype, tuple(each.shape)) for name, each in extras.items()} for extras in seen] == [
        {"goal": (torch.int64, (ROWS, 3)), "expert": (torch.bool, (ROWS,))}
    ] * 2


def test_batches_of_sequences_are_refused() -> None:
    given = batches(BOX, 1)
    with pytest.raises(ValueError, match=r"batches\.valid is set"):
        learn(backend("td3"), Batches(given.columns, given.rows, valid=np.ones((1, ROWS), bool)))


@pytest.mark.parametrize(("algorithm", "spec"), [("ppo", BOX), ("appo", STATE), ("ppo", CHOICE)])
def test_a_turn_of_the_backend_is_a_turn_of_the_learner(algorithm: str, spec: EnvSpec) -> None:
    learner, other = make_of_rollouts(algorithm, spec), make_of_rollouts(algorithm, spec)
    experience, rng = rollout(learner, gaps=0.1), np.random.default_rng(5)
    turn(learner, experience)
    orders = np.stack([rng.permutation(experience.valid.sum()) for _ in range(2)])
    given = RolloutBatch(experience.columns, experience.valid)
    # No row of this rollout was broken off but those before a gap.
    broken = np.zeros_like(given.valid)
    broken[:-1] = ~given.valid[1:]
    columns = {**given.columns, "truncated": given.columns["truncated"] | (broken & ~given.columns["terminated"])}
    found = other.backend.learn_rollout(
        other.config, RolloutBatch(columns, given.valid), orders, 3e-4, count=100, updates=0, seed=0
    )
    assert (found.updates, found.rate) == (8, 3e-4)
    assert same(learner.backend, other.backend)
    assert {name: len(values) for name, values in found.metrics.items()} == {
        **dict.fromkeys(("policy_loss", "entropy", "clip_fraction", "approx_kl", "value_loss", "value"), 8),
        "explained_variance": 1,
    }


@dataclass
class Inner:
    scale: torch.Tensor = field(default_factory=lambda: torch.ones(2))
    nothing: None = None


@dataclass
class Nested:
    inner: Inner = field(default_factory=Inner)
    named: dict[str, Any] = field(default_factory=lambda: {"a": torch.zeros(1), "b": [Inner(), (torch.ones(3),)]})
    optimiser: Adam = field(default_factory=lambda: Adam(torch.zeros(2)))


def test_a_state_may_nest_dataclasses_dicts_and_lists() -> None:
    found = {name: tuple(tensor.shape) for name, tensor in state_tensors(Nested())}
    assert found == {
        "inner/scale": (2,),
        "named/a": (1,),
        "named/b/0/scale": (2,),
        "named/b/1/0": (3,),
        "optimiser/mean": (2,),
        "optimiser/square": (2,),
        "optimiser/steps": (),
    }


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"count": 3}, r"named/count is 3: .* keep counters out of the state"),
        ({"a": [0.5]}, r"named/a/0 is 0\.5"),
        ({"a": {"deep": "text"}}, "named/a/deep is a str, which cannot be saved"),
        ({"a": np.zeros(3)}, "named/a is a ndarray, which cannot be saved"),
    ],
)
def test_a_state_with_something_that_cannot_be_saved_is_refused_by_its_path(part: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        list(state_tensors(Nested(named=part)))


SCHEDULERS = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("kind", "options", "wanted"),
    [
        (SCHEDULERS.StepLR, {"step_size": 2, "gamma": 0.1}, [1.0, 1.0, 0.1, 0.1, 0.01]),
        (SCHEDULERS.ExponentialLR, {"gamma": 0.5}, [1.0, 0.5, 0.25, 0.125, 0.0625]),
        (SCHEDULERS.LinearLR, {"start_factor": 0.5, "total_iters": 2}, [0.5, 0.75, 1.0, 1.0, 1.0]),
        (SCHEDULERS.LambdaLR, {"lr_lambda": lambda update: 1.0 + update}, [1.0, 2.0, 3.0, 4.0, 5.0]),
    ],
)
def test_a_scheduler_of_torch_gives_its_factor_after_any_number_of_updates(
    kind: type, options: dict[str, Any], wanted: list[float]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factor = backend("td3").scheduler(kind, options)
        with torch.inference_mode():
            assert [factor(updates) for updates in range(5)] == pytest.approx(wanted)
            assert [factor(updates) for updates in (4, 1, 3, 0)] == pytest.approx(
                [wanted[each] for each in (4, 1, 3, 0)]
            )


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (SCHEDULERS.ReduceLROnPlateau, {}, "ReduceLROnPlateau needs a metric"),
        (torch.optim.Adam, {}, r"Adam is not a class of torch\.optim\.lr_scheduler"),
        (SCHEDULERS.StepLR, {}, r"StepLR\(\) raised TypeError with these options: .*step_size"),
        (SCHEDULERS.StepLR, {"step": 3}, r"StepLR\(step=3\) raised TypeError with these options"),
    ],
)
def test_a_scheduler_that_does_not_fit_is_refused(kind: type, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        backend("td3").scheduler(kind, options)


def test_a_scheduler_that_ends_before_the_run_says_so() -> None:
    factor = backend("td3").scheduler(SCHEDULERS.OneCycleLR, {"max_lr": 2.0, "total_steps": 3})
    factor(2)
    with pytest.raises(UsageError, match=r"OneCycleLR\(max_lr=2\.0, total_steps=3\) raised ValueError after 3 updates"):
        factor(4)
