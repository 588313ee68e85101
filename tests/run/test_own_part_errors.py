"""What a part of a user's own may get wrong, and what the error says of it: the value, the rule and the remedy."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from offbeat.algorithms.configs import group, groups, setting
from offbeat.algorithms.torch import make_network
from offbeat.errors import OffbeatError, UsageError
from own_parts import expectile
from own_parts.collector import Background
from own_parts.expectile import ALGORITHM
from own_parts.exploration import PinkNoise
from own_parts.preprocessor import LargestScale
from own_parts.recent import Recent
from short_runs import SETTINGS
from specs import vector_spec

SPEC = vector_spec(3, 2)
SMALL: dict[str, Any] = {"hidden": (4,), "batch_size": 4, "random_steps": 0}


def agent(algorithm: Any = "td3", **settings: Any) -> offbeat.Agent:
    return offbeat.Agent(algorithm, SPEC, **SMALL, **settings)


def updated(made: offbeat.Agent, count: int = 1) -> None:
    """Makes updates with a few transitions."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        made.observe(rng.random(3), np.zeros(2), 1.0, rng.random(3), False, False)
    made.update(count)


# An algorithm.


def record(**changes: Any) -> Any:
    return dataclasses.replace(ALGORITHM, name="wrong", **changes)


def functions(**changes: Any) -> Any:
    """The algorithm with some of its functions replaced; None leaves one out."""
    own = {name: getattr(expectile, name) for name in ("init", "update", "policy_description")} | changes
    return record(modules={"torch": SimpleNamespace(**{name: each for name, each in own.items() if each is not None})})


def init_with(**changes: Any) -> Any:
    return lambda *arguments: {**expectile.init(*arguments), **changes}


def another_actor(config: Any, spec: Any, rng: Any, device: Any, dtype: Any) -> Any:
    actor = make_network(config, "actor", torch.nn.Linear(spec.observation_size, spec.action_size), device, dtype)
    return expectile.init(config, spec, rng, device, dtype) | {"actor": actor}


@dataclass(frozen=True)
class Without:
    networks: groups.Networks = group(groups.Networks)


@dataclass(frozen=True)
class Bare(expectile.Expectile):
    extra: int = 3


@dataclass(frozen=True)
class Unnamed(expectile.Expectile):
    tau: float = setting(2.0, "Out of range.", at_most=1)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (
            functions(update=None),
            r"function update is missing; define update\(state, config, spec, batch, noise, rates",
        ),
        (
            functions(init=lambda config: None),
            r"init cannot be called: too many .* define init\(config, spec, rng, dev",
        ),
        (functions(init=lambda *arguments: None), r"has no network 'actor' to act with, but \[\]; name one so"),
        (functions(init=init_with(count=3)), "count is 3: a number in an algorithm's state would not be saved"),
        (functions(init=init_with(net=torch.nn.Linear(1, 1))), "net is a Linear, which cannot be saved; use tensors"),
        (
            functions(init=another_actor),
            "does not describe its network actor: .*'actor/0/bias' is missing.* an MLP of Offbeat",
        ),
        (functions(policy_description=lambda config, spec: None), "does not describe its network actor: .* kind=None"),
        (functions(policy_description=lambda config, spec: {"kind": "best"}), "kind='best'"),
        (functions(policy_description=lambda config, spec: {"kind": "deterministic"}), "policy has no 'activation'"),
        (record(modules={"torch": "no_such_module"}), "modules of wrong='no_such_module': there is no module"),
        (record(modules={"torch": "own_parts.replay"}), "function init is missing"),
        (record(modules={}), "backend='torch' does not have wrong"),
        (record(config=int), "config=<class 'int'> must be a dataclass of settings; decorate it"),
        (record(config=Without, groups={}), "Without has no group returns and no group replay, which runs read; add"),
        (record(config=Bare), r"the field extra of Bare has no help text; write it as extra: TYPE = setting\("),
        (record(config=Unnamed), "tau=2.0 is out of range: it must be at most 1"),
        (record(groups={"actor": "policy_"}), "names the setting policy_learning_rate, which Expectile, or the run"),
        (record(run_defaults={"warmup": 1}), "names the setting warmup"),
        (record(without=("nothing",)), "names the setting nothing"),
        (record(learns_from="buffer"), "learns_from='buffer'.* must be replay or rollouts"),
        (record(actions=("continuous",)), r"actions=\('continuous',\).* some of box, discrete, multidiscrete"),
    ],
)
def test_an_algorithm_that_cannot_run_is_refused_when_it_is_made(algorithm: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent(algorithm)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda batch: None, r"update returned a NoneType, None; return \(metrics, td_errors\)"),
        (lambda batch: ({"reward": batch.reward}, batch.reward), r"returned the metric reward \(4,\)"),
        (lambda batch: ({}, None), "returned TD errors NoneType for a batch of 4"),
        (lambda batch: ({}, batch.obs), r"returned TD errors \(4, 3\) for a batch of 4"),
    ],
)
def test_what_an_update_returns_is_checked(result: Any, words: str) -> None:
    made = agent(functions(update=lambda state, config, spec, batch, *others: result(batch)))
    with pytest.raises(OffbeatError, match=words):
        updated(made)


# A replay.


class OneBatch(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        return super().draw(rng, 1)


class Columns(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        return super().draw(rng, count).columns


class Unweighted(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        return dataclasses.replace(super().draw(rng, count), weight=np.ones(4))


class NoReward(Recent):
    def draw(self, rng: Any, count: int) -> Any:
        found = super().draw(rng, count)
        return dataclasses.replace(found, columns={"obs": found.columns["obs"]})


class Beyond(Recent):
    def positions(self, rng: Any, shape: Any, total: int) -> Any:
        return np.full(shape[0] * shape[1], total)


class Shares(Recent):
    def positions(self, rng: Any, shape: Any, total: int) -> Any:
        return rng.random(shape[0] * shape[1])


class OnlyRows(Recent):
    def feedback(self, rows: Any) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"replay": "prioritised"}, "replay='prioritised' is not of the form module:callable"),
        ({"replay": "own_parts.replay:Prioritized"}, "has no 'Prioritized'; did you mean Prioritised?"),
        (
            {"replay": Recent, "replay_kwargs": {"exponent": 2}},
            r"\(Schema, ReplaySettings, exponent=\) raised TypeError",
        ),
        ({"replay": lambda schema, settings: 3}, "made a int without schema, shards, .*; it needs"),
        ({"replay": OnlyRows}, r"feedback of OnlyRows must take \(rows, td_errors\): too many positional arguments"),
    ],
)
def test_a_replay_that_cannot_be_made_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent(**settings)


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        (OneBatch, r"rows with the shape \(1, 4\); it must begin with \(K, B\) = \(3, 4\)|obs with the shape"),
        (Columns, "draw of your replay returned a dict; return offbeat.types.Batches"),
        (Unweighted, r"weight with the shape \(4,\); it must begin with \(K, B\)"),
        (NoReward, "batches without action, reward, discount, next_obs; add them to columns"),
        (Beyond, "returned int64 from 6 to 6; return whole numbers from 0 to 5"),
        (Shares, "returned float64 from .*; return whole numbers from 0 to 5, as int64"),
    ],
)
def test_what_a_replay_draws_is_checked(replay: Any, words: str) -> None:
    with pytest.raises(OffbeatError, match=words):
        updated(agent(replay=replay), 3)


def test_a_replay_that_is_not_ready_holds_no_collector_up(tmp_path: Path) -> None:
    """Updates that are due wait for it, and are made when it is."""

    class Late(Recent):
        def ready(self) -> bool:
            return len(self) >= 80

    run = offbeat.train("td3", "Pendulum-v1", out=str(tmp_path), **{**SETTINGS, "replay": Late, "num_envs": 4})
    summary = json.loads((run.path / "summary.json").read_text())
    assert (run.status, summary["env_steps"], summary["updates"]) == ("finished", 120, 200)


# A collector.


class NoReport(Background):
    def report(self) -> None:
        return None


class Alone(Background):
    def poll(self, timeout: Any) -> Any:
        return (super().poll(timeout) or [[]])[0]


class Stateless(Background):
    def snapshot(self) -> None:
        return None


@pytest.mark.parametrize(
    ("collector", "words"),
    [
        (lambda: None, r"calling it with \(CollectorContext\) raised TypeError"),
        (lambda context: None, "made a NoneType without num_envs, connect, publish"),
        (NoReport, "report of the collector returned a NoneType; return a CollectorReport"),
        (Stateless, "snapshot of the collector returned a NoneType; return a CollectorState"),
        (Alone, "poll of the collector returned a Chunk; return a list"),
    ],
)
def test_a_collector_that_breaks_the_protocol_is_named(collector: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match=words):
        offbeat.train("td3", "Pendulum-v1", out=str(tmp_path), **{**SETTINGS, "collector": collector, "num_envs": 2})


# An exploration.


class ActionOnly(PinkNoise):
    def act(self, *arguments: Any) -> Any:
        return super().act(*arguments)[0]


class FirstRow(PinkNoise):
    def act(self, *arguments: Any) -> Any:
        action, carry, extras = super().act(*arguments)
        return action[0], carry, extras


class NoColumns(PinkNoise):
    def initial_carry(self, num_envs: int) -> Any:
        return np.zeros(num_envs)


@pytest.mark.parametrize(
    ("exploration", "words"),
    [
        (ActionOnly, r"act returned a ndarray; return \(action, carry, extras\)"),
        (FirstRow, r"act returned the action \(2,\) for 2 environments.* the action must be \(2, 2\)"),
        (NoColumns, "acting on 2 observations of zeros raised IndexError"),
    ],
)
def test_an_exploration_is_tried_before_a_run_begins(exploration: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent(exploration=exploration)


# A preprocessor.


class FewerNumbers(LargestScale):
    def __call__(self, observations: Any) -> Any:
        return observations[..., :1]


class Listed(LargestScale):
    def arrays(self) -> Any:
        return [self.largest]


class Forgetful(LargestScale):
    def restore(self, arrays: Any) -> None:
        self.largest = arrays["other"]


@pytest.mark.parametrize(
    ("preprocessor", "words"),
    [
        (lambda: 3, r"calling it with \(EnvSpec\) raised TypeError"),
        (lambda spec: 3, "made a int without update, __call__, arrays, restore"),
        (FewerNumbers, r"returned the shape \(2, 1\) for observations \(2, 3\); keep the shape"),
        (Listed, "arrays returned a list; return a dict of NumPy arrays"),
        (Forgetful, "a trial with observations of zeros raised KeyError: 'other'"),
    ],
)
def test_a_preprocessor_is_tried_before_a_run_begins(preprocessor: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent("sac", preprocessor=preprocessor)


# A schedule.


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("cosin", "actor_schedule='cosin' is none of constant, linear, cosine.* did you mean cosine?"),
        (lambda: 1.0, "your schedule raised TypeError.*; it is called with the progress"),
        (lambda progress: None, "your schedule raised TypeError.* returns a factor"),
        (lambda progress: -1.0, r"returned -1.0 at progress 0; return a factor >= 0"),
        (dict, "dict is not a class of torch.optim.lr_scheduler; use one, or a function of the progress"),
    ],
)
def test_a_schedule_is_tried_before_a_run_begins(schedule: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        agent(actor_schedule=schedule, total_steps=100)
