"""float16's gradients are scaled; a step whose gradient is not finite is left out and counted, and learning goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small_agents
import small_backends as small
from offbeat.algorithms.torch import across, precision
from offbeat.algorithms.torch.optimise import SGD, Guarded, apply, apply_jointly
from offbeat.algorithms.torch.precision import FIRST_SCALE, LEAST_SCALE, GradientScaler
from offbeat.types import Batches
from small_rollouts import BOX, make, rollout, turn


def scaler() -> GradientScaler:
    return GradientScaler(torch.device("cpu"))


def with_rewards(given: Batches, reward: float) -> Batches:
    columns = {**given.columns, "reward": np.full_like(given.columns["reward"], reward)}
    return Batches(columns, given.rows, given.weight)


def sac(**settings: Any) -> Any:
    return small.make("sac", BOX, precision="float16", **settings)


def copies(backend: Any) -> dict[str, torch.Tensor]:
    return {name: getattr(backend.state, name).flat.clone() for name in ("actor", "critic")}


def test_a_scale_that_is_too_large_leaves_steps_out_until_it_fits_and_training_recovers() -> None:
    backend, given = sac(), small.batches(BOX, 60)
    backend.scaler.scale.fill_(2.0**36)
    before = copies(backend)
    small.learn(backend, small.part(given, slice(0, 1)))
    after = copies(backend)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert backend.counters() == {"skipped_updates": 2.0, "gradient_scale": 2.0**34}  # of the critic and of the actor
    assert float(backend.state.critic_optimiser.optimiser.steps) == 0
    assert float(backend.state.temperature_optimiser.optimiser.steps) == 1  # its gradient was finite
    small.learn(backend, small.part(given, slice(1, 60)), updates=1)
    moved = copies(backend)
    assert all(not torch.equal(before[name], moved[name]) for name in before)
    assert all(bool(moved[name].isfinite().all()) for name in moved)
    counted = backend.counters()
    assert 10 < counted["skipped_updates"] < 60
    assert counted["gradient_scale"] == 2.0 ** (36 - counted["skipped_updates"])


def test_only_the_network_with_the_overflow_is_left_as_it_was() -> None:
    backend = sac()
    before = copies(backend)
    small.learn(backend, with_rewards(small.batches(BOX, 1), 1e30))
    after = copies(backend)
    assert torch.equal(after["critic"], before["critic"])
    assert not torch.equal(after["actor"], before["actor"])
    assert backend.counters()["skipped_updates"] == 1
    small.learn(backend, small.batches(BOX, 2), updates=1)
    assert not torch.equal(copies(backend)["critic"], before["critic"])


def test_float32_makes_the_same_step_without_asking() -> None:
    backend = small.make("sac", BOX, precision="float32")
    small.learn(backend, with_rewards(small.batches(BOX, 1), float("inf")))
    assert not backend.state.critic.flat.isfinite().all()


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_networks_that_share_an_update_are_left_as_they_were_together(max_grad_norm: float | None) -> None:
    learner = make("ppo", precision="float16", max_grad_norm=max_grad_norm, minibatches=1, epochs=1)
    experience = rollout(learner)
    experience.columns["reward"][:] = 1e30  # the critic's loss overflows, and the advantages are standardised
    before = learner.state.actor.flat.clone(), learner.state.critic.flat.clone()
    turn(learner, experience)
    assert torch.equal(learner.state.actor.flat, before[0])
    assert torch.equal(learner.state.critic.flat, before[1])
    assert learner.counters() == {"skipped_updates": 1.0, "gradient_scale": FIRST_SCALE / 2}
    turn(learner, rollout(learner))
    assert not torch.equal(learner.state.actor.flat, before[0])


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_one_number_that_is_not_finite_leaves_out_a_step(bad: float) -> None:
    guard = scaler()
    flats, gradients = [torch.ones(3), torch.ones(2)], [torch.ones(3), torch.tensor([1.0, bad])]
    parts = [(flat, each, Guarded(SGD(), guard)) for flat, each in zip(flats, gradients, strict=True)]
    apply_jointly(parts, 0.5, max_norm=1.0)
    assert all(torch.equal(flat, torch.ones_like(flat)) for flat in flats)
    apply(*parts[0], 0.5)
    assert flats[0].tolist() == [0.5] * 3
    assert guard.numbers() == {"skipped_updates": 1.0, "gradient_scale": FIRST_SCALE / 2}


class OtherRank:
    """Two ranks, the other of which has a gradient of this value."""

    size = 2

    def __init__(self, value: float) -> None:
        self.value = value

    def add_up(self, tensor: torch.Tensor) -> None:
        tensor.add_(self.value)


def test_an_overflow_on_one_rank_leaves_out_the_step_on_all() -> None:
    guard, flat = scaler(), torch.ones(3)
    with across.together(OtherRank(float("inf"))):
        apply(flat, torch.ones(3), Guarded(SGD(), guard), 0.5)
    assert flat.tolist() == [1.0] * 3
    with across.together(OtherRank(3.0)):
        apply(flat, torch.ones(3), Guarded(SGD(), guard), 0.5)
    assert flat.tolist() == [0.0] * 3  # the mean of 1 and 3 is 2
    assert guard.numbers() == {"skipped_updates": 1.0, "gradient_scale": FIRST_SCALE / 2}


def test_the_scale_doubles_after_many_finite_steps_and_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 3)
    guard, good, bad = scaler(), [torch.ones(2)], [torch.tensor([float("nan")])]
    assert [guard.accepts(good) and float(guard.scale) for _ in range(3)] == [FIRST_SCALE, FIRST_SCALE, 2 * FIRST_SCALE]
    guard.accepts(good)
    guard.accepts(bad)
    assert float(guard.scale) == FIRST_SCALE
    assert int(guard.growth) == 0  # counted from the overflow
    for _ in range(100):
        guard.accepts(bad)
    assert float(guard.scale) == LEAST_SCALE
    for _ in range(300):
        guard.accepts(good)
    assert float(guard.scale) == precision.LARGEST_SCALE


def test_scaled_gradients_keep_what_float16_alone_would_lose() -> None:
    """A gradient of 1e-9 at the output is 0 in float16."""
    network = sac().state.critic
    parts = torch.randn(4, 5), torch.zeros(4, 0), torch.randn(4, 2)
    out, tape = network.forward(*parts)
    network.backward(tape, torch.full_like(out, 1e-9))
    assert network.gradient.any()
    scaled, (out, tape) = network.gradient.clone(), network.forward(*parts)
    at_action = network.input_gradient(2, tape, torch.full_like(out, 1e-9))
    network._pass.scale = None
    out, tape = network.forward(*parts)
    network.backward(tape, torch.full_like(out, 1e-9))
    assert not network.gradient.any()
    network.backward(network.forward(*parts)[1], torch.full_like(out, 1.0))
    torch.testing.assert_close(scaled * 1e9, network.gradient, rtol=2e-2, atol=1e-3)
    assert at_action.any()


def test_blocks_of_a_batch_add_up() -> None:
    network = sac().state.actor
    x, d_out = torch.randn(4, 5), 1e-3 * torch.randn(4, 4)
    network.backward(network.forward(x)[1], d_out)
    once = network.gradient.clone()
    network.backward(network.forward(x)[1], d_out, add=True)
    torch.testing.assert_close(network.gradient, 2 * once)


def test_a_resumed_agent_goes_on_with_the_same_scale_bit_for_bit(tmp_path: Path, no_warning: None) -> None:
    def agent() -> Any:
        return small_agents.agent("sac", precision="float16")

    whole = agent()
    small_agents.observed(whole)
    whole.learner.backend.scaler.scale.fill_(2.0**40)
    metrics = whole.update(5)
    assert metrics["skipped_updates"] > 0
    whole.save(tmp_path)
    resumed = agent()
    resumed.load(tmp_path)
    assert resumed.learner.counters() == whole.learner.counters() != agent().learner.counters()
    for each in (whole, resumed):
        each.update(20)
    assert small.same(whole.learner, resumed.learner)
    assert {"gradient_scaler/scale", "gradient_scaler/growth"} < whole.learner.arrays().keys()


@pytest.fixture
def no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run on every processor; that some warn is tested elsewhere."""
    monkeypatch.setattr("offbeat.run.agent.warn_of_slow_precision", lambda *arguments: None)
