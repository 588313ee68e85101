"""An algorithm of a user's own: what it may do, what it may get wrong, and the value, rule and remedy in the error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from offbeat.algorithms.configs import Reference, group, groups, setting
from offbeat.algorithms.torch import MLP, make_actor_and_critics, make_network, make_optimiser, minimise
from offbeat.errors import OffbeatError, UsageError
from offbeat.learn.learner import RESERVED
from offbeat.observe.groups import ROLLOUT, TIME
from offbeat.run.numbers import WHERE
from own_parts import expectile
from own_parts.expectile import ALGORITHM
from short_runs import SETTINGS
from small_agents import agent, observed, updated


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


def init_with_dropped_activation(config: Any, spec: Any, rng: Any, device: Any, dtype: Any) -> Any:
    """Acts with an MLP whose names and shapes are those of ours."""

    class Linear(MLP):
        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    module = Linear((spec.observation_size, 4, spec.action_size), activation="relu", layer_norm=False, rng=rng)
    state = expectile.init(config, spec, rng, device, dtype)
    return state | {"actor": make_network(config, "actor", module, device, dtype)}


GAUSSIAN = {"kind": "squashed_gaussian", "activation": "relu", "action_size": 2, "log_std_min": -5, "log_std_max": 2}


@dataclass(frozen=True)
class Without:
    networks: groups.Networks = group(groups.Networks)


@dataclass(frozen=True)
class Bare(expectile.Expectile):
    extra: int = 3


@dataclass(frozen=True)
class TwoTaus(expectile.Expectile):
    target: groups.Target = group(groups.Target)


@dataclass(frozen=True)
class Seeded(expectile.Expectile):
    seed: int = setting(0, "Of the run, too.")


@dataclass(frozen=True)
class Untyped(expectile.Expectile):
    shape: str | Callable | None = setting(None, "A type that is not complete.")  # type: ignore[type-arg]


@dataclass(frozen=True)
class ByNameOnly(expectile.Expectile):
    eta_learning_rate: float = setting(0.1, "Rate.")
    eta_schedule: str = setting("constant", "No callable.")


@dataclass
class Changeable:
    networks: groups.Networks = group(groups.Networks)


@dataclass(frozen=True)
class NoCritics:
    returns: groups.Returns = group(groups.Returns)
    replay: groups.ReplayUse = group(groups.ReplayUse)
    networks: groups.Networks = group(groups.Networks)
    optimisation: groups.Optimisation = group(groups.Optimisation)


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
        (functions(init=lambda *arguments: {}), r"has no network 'actor' to act with, but \[\]; name one so"),
        (functions(init=lambda *arguments: None), "init of the algorithm returned None; return the state"),
        (functions(init=init_with(count=3)), "count is 3: a number in an algorithm's state would not be saved"),
        (functions(init=init_with(text="a")), "text is a str, which cannot be saved; use tensors"),
        (
            functions(init=init_with(net=torch.nn.Linear(1, 1))),
            r"net is a Linear, which cannot be saved; wrap it: make_network\(config, 'net', module, device, dtype\)",
        ),
        (
            functions(init=init_with(steps=torch.optim.Adam([torch.zeros(1)]))),
            r"steps is a Adam, which cannot be saved; use make_optimiser\(config.optimisation, network.flat\)",
        ),
        (
            functions(init=another_actor),
            r"does not describe its network actor: .*'actor/0/bias' is missing.* an MLP of Offbeat's \(offbeat.algor",
        ),
        (functions(policy_description=lambda config, spec: None), "does not describe its network actor: .* kind=None"),
        (
            functions(policy_description=lambda config, spec: {"kind": "best"}),
            "kind='best'.* it knows squashed_gaussian",
        ),
        (
            functions(policy_description=lambda config, spec: {"kind": "deterministic", "activation": "tanh"}),
            "with activation='tanh' computes other outputs than the network that acts.*; name the activation",
        ),
        (functions(init=init_with_dropped_activation), "computes other outputs than the network that acts"),
        (
            functions(policy_description=lambda config, spec: GAUSSIAN),
            "the last layer has 2 outputs, but squashed_gaussian needs 4",
        ),
        (
            functions(policy_description=lambda config, spec: {"kind": "deterministic"}),
            "policy has no 'activation'; it needs k",
        ),
        (functions(noise_shape=lambda config, spec: "B"), "noise_shape returned 'B'; return a tuple of whole numbers"),
        (record(modules={"torch": "no_such_module"}), "modules of wrong='no_such_module': there is no module"),
        (record(modules={"torch": "own_parts.replay"}), "function init is missing"),
        (record(modules={}), "backend='torch' does not have wrong"),
        (record(config=int), "config=<class 'int'> must be a frozen dataclass of settings; decor"),
        (record(config=Changeable), "must be a frozen dataclass of settings; decorate it with dataclass.frozen=True"),
        (record(config=TwoTaus), "the setting tau of the group target is also in TwoTaus; rename one"),
        (record(config=Seeded), "the setting seed of Seeded is also in the run; rename one"),
        (record(config=Untyped), "the setting shape has the type .*Callable.*; use float, int, .* or Reference"),
        (
            record(config=ByNameOnly, groups={"eta": "eta_"}),
            "the schedule eta_schedule has the type <class 'str'>, which takes no callable; use Reference",
        ),
        (
            record(config=NoCritics, groups={}),
            "init reads config.critic_networks, but NoCritics has no such group or setting; add it",
        ),
        (record(modules="sharpen"), "modules='sharpen' must be a mapping; write for example {.torch.: __name__}"),
        (record(groups=("actor",)), r"groups=\('actor',\) must be a mapping"),
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
        (
            lambda batch: ({}, batch.reward[:, None] - batch.reward),
            r"TD errors \(4, 4\) .* drop the column with \[:, 0\]",
        ),
        (lambda batch: ({"step": batch.reward[0]}, batch.reward), "the metric 'step', which the run logs itself; use"),
        (lambda batch: ({"actor_rate": 1.0}, batch.reward), "the metric 'actor_rate', which the run logs itself"),
    ],
)
def test_what_an_update_returns_is_checked(result: Any, words: str) -> None:
    made = agent(functions(update=lambda state, config, spec, batch, *others: result(batch)))
    with pytest.raises(OffbeatError, match=words):
        updated(made)


def test_td_errors_may_have_a_row_for_each_critic_where_there_are_as_many_as_rows() -> None:
    update = lambda state, config, spec, batch, *others: ({}, batch.reward.expand(4, 4))  # noqa: E731
    updated(agent(functions(update=update), critics=4))


def test_metrics_may_be_tensors_or_numbers() -> None:
    def update(state: Any, config: Any, spec: Any, batch: Any, *others: Any) -> Any:
        return {"plain": 1.5, "numpy": np.float32(1.5), "tensor": batch.reward[0]}, batch.reward

    made = agent(functions(update=update))
    observed(made)
    assert made.update(2) == {"plain": 1.5, "numpy": 1.5, "tensor": 1.0}


def test_every_number_that_a_run_logs_is_refused_as_a_metric(tmp_path: Path) -> None:
    run = offbeat.train("td3", "Pendulum-v1", out=str(tmp_path), **SETTINGS)
    (first, *_) = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    metrics = {"actor_loss", "critic_loss", "q"}
    assert {*first, *WHERE, *ROLLOUT, *TIME} - metrics - RESERVED == {"actor_rate", "critic_rate"}


@dataclass(frozen=True)
class WithEta(expectile.Expectile):
    eta_learning_rate: float = setting(0.01, "Learning rate of eta.", at_least=0)
    eta_schedule: Reference = setting("constant", "Schedule of eta_learning_rate over the run.")


def test_a_number_learns_with_a_rate_schedule_and_noise_of_its_own(tmp_path: Path) -> None:
    def init(config: Any, spec: Any, *others: Any) -> Any:
        log_eta = torch.zeros((), requires_grad=True)
        step = make_optimiser(config.optimisation, log_eta)
        return expectile.init(config, spec, *others) | {"log_eta": log_eta, "eta_step": step}

    def update(state: Any, config: Any, spec: Any, batch: Any, noise: Any, rates: Any, updates: int) -> Any:
        assert noise.shape == (4, 2)
        minimise(state["log_eta"].exp(), state["log_eta"], state["eta_step"], rates["eta"])
        return {}, batch.reward

    own = SimpleNamespace(
        init=init,
        update=update,
        policy_description=expectile.policy_description,
        noise_shape=lambda config, spec: (config.replay.batch_size, spec.action_size),
    )
    eta = record(config=WithEta, groups={"eta": "eta_"}, modules={"torch": own})
    made, again = (agent(eta, eta_schedule=lambda progress: 0.5, total_updates=10) for _ in range(2))
    updated(made, 2)
    assert float(made.learner.arrays()["log_eta"]) == pytest.approx(-0.01, rel=1e-3)  # Adam: twice the rate 0.005
    made.save(tmp_path)
    again.load(tmp_path)
    assert again.learner.arrays()["log_eta"] == made.learner.arrays()["log_eta"]


@pytest.mark.parametrize("squashed", [False, True])
def test_a_gaussian_with_two_outputs_for_each_action_acts(squashed: bool, tmp_path: Path) -> None:
    def init(config: Any, spec: Any, rng: Any, device: Any, dtype: Any) -> Any:
        actor, _ = make_actor_and_critics(config, spec, rng, device, dtype, 2 * spec.action_size)
        return expectile.init(config, spec, rng, device, dtype) | {"actor": actor}

    def policy_description(config: Any, spec: Any) -> Any:
        own = {"action_size": spec.action_size, "squashed": squashed, "state_dependent_std": True}
        return {"kind": "gaussian", "activation": config.networks.activation, **own}

    def update(state: Any, config: Any, spec: Any, batch: Any, *others: Any) -> Any:
        return {}, batch.reward

    own = functions(init=init, update=update, policy_description=policy_description)
    run = offbeat.train(own, "Pendulum-v1", out=str(tmp_path), exploration=None, **SETTINGS)
    assert run.status == "finished"
    assert run.policy().act([1.0, 0.0, 0.0]).shape == (1,)


def test_a_learning_rate_that_no_group_has_is_named() -> None:
    made = agent(functions(update=lambda state, config, spec, batch, noise, rates, updates: rates["q"]))
    with pytest.raises(OffbeatError, match=r"update reads rates\['q'\], but groups .* has only actor, critic; add it"):
        updated(made)


def test_a_default_of_a_group_that_the_group_does_not_have_is_named() -> None:
    with pytest.raises(UsageError, match=r"group\(Returns, gama=...\): the group has only gamma, n_step; use one"):
        group(groups.Returns, gama=0.9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.update(mean=torch.zeros(())), "update added mean to the state; create it in init"),
        (lambda state: state.update(count=3), "count is 3: a number in an algorithm's state would not be saved"),
        (lambda state: state.pop("kept"), r"kept of the state was \(2,\) after init and is missing now"),
        (lambda state: state.update(kept=torch.zeros(3)), r"kept .* was \(2,\) after init and is \(3,\) now"),
    ],
)
def test_an_update_that_changes_what_the_state_holds_is_refused_at_once(change: Any, words: str) -> None:
    def update(state: Any, config: Any, spec: Any, batch: Any, *others: Any) -> Any:
        change(state)
        return {}, batch.reward

    with pytest.raises(OffbeatError, match=words):
        updated(agent(functions(init=init_with(kept=torch.zeros(2)), update=update)))


def test_an_update_may_replace_a_tensor_of_the_state(tmp_path: Path) -> None:
    def update(state: Any, config: Any, spec: Any, batch: Any, *others: Any) -> Any:
        state["kept"] = state["kept"] + 1
        return {}, batch.reward

    made, again = (agent(functions(init=init_with(kept=torch.zeros(2)), update=update)) for _ in range(2))
    updated(made, 3)
    made.save(tmp_path)
    again.load(tmp_path)
    np.testing.assert_array_equal(again.learner.arrays()["kept"], [3.0, 3.0])
