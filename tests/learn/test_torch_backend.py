"""The torch backend: turns with rollouts, the state by name, torch's learning-rate schedulers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.algorithms.torch.optimise import Adam
from offbeat.errors import UsageError
from offbeat.learn.torch_state import state_tensors
from offbeat.types import EnvSpec, RolloutBatch
from small_backends import BOX, CHOICE, STATE, make, same
from small_rollouts import make as make_of_rollouts
from small_rollouts import rollout, turn


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
        factor = make("td3", BOX).scheduler(kind, options)
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
        make("td3", BOX).scheduler(kind, options)


def test_a_scheduler_that_ends_before_the_run_says_so() -> None:
    factor = make("td3", BOX).scheduler(SCHEDULERS.OneCycleLR, {"max_lr": 2.0, "total_steps": 3})
    factor(2)
    with pytest.raises(UsageError, match=r"OneCycleLR\(max_lr=2\.0, total_steps=3\) raised ValueError after 3 updates"):
        factor(4)
