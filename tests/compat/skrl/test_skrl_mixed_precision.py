"""mixed_precision of skrl's agents: our mixed precision, with torch's scaler as the agent's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from test_skrl_rnn import make_agent as make_recurrent
from test_skrl_rnn import trained

import skrl_agents as small
from offbeat.algorithms.torch.optimise import Guarded


def agent(directory: Path, **rows: Any) -> Any:
    made = small.make_agent(directory, experiment={"write_interval": 100}, mixed_precision=True)
    made.memory.add_samples(**{**small.transitions(20), **rows})
    return made


def test_networks_and_optimisers_are_those_of_our_mixed_precision(tmp_path: Path) -> None:
    made = agent(tmp_path)
    state = made.learner.backend.state
    assert all("_full_precision_forward" in vars(each.module) for each in (state.actor, state.critic, state.target))
    optimisers = state.actor_optimiser, state.critic_optimiser, state.temperature_optimiser
    assert all(isinstance(each, Guarded) for each in optimisers)
    plain = small.make_agent(tmp_path)
    assert not isinstance(plain.learner.backend.state.actor_optimiser, Guarded)
    assert not plain.scaler.is_enabled()


def test_the_scale_changes_once_in_an_update_however_many_steps_are_left_out(tmp_path: Path) -> None:
    made = agent(tmp_path, next_observations=torch.full((20, 3), float("nan")), rewards=torch.zeros(20, 1))
    made._module.watch = True
    before, scale = small.weights(made), made.scaler.get_scale()
    made._learn(made.learner, 1, True)
    after = small.weights(made)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("critic"))
    assert made.scaler.get_scale() == scale / 2
    assert made._module.seen[0].skipped == 1
    broken = agent(tmp_path, observations=torch.full((20, 3), float("nan")))
    before = small.weights(broken)
    broken._learn(broken.learner, 1, True)
    assert all(torch.equal(each, before[name]) for name, each in small.weights(broken).items())
    assert broken._module.seen[0].skipped == 2  # of the critics and of the policy
    assert broken.scaler.get_scale() == scale / 2
    broken._track_updates()
    assert broken.tracking_data["Learning / Skipped updates"] == [2]


def test_the_scale_grows_by_updates_and_the_loaded_one_is_used(tmp_path: Path) -> None:
    made = agent(tmp_path)
    made.scaler.set_growth_interval(2)
    scales = []
    for timestep in range(4):
        made.update(timestep=timestep, timesteps=4)
        scales.append(made.scaler.get_scale())
    assert scales == [2.0**16, 2.0**17, 2.0**17, 2.0**18]
    made.save(str(tmp_path / "agent.pt"))
    other = agent(tmp_path)
    other.load(str(tmp_path / "agent.pt"))
    assert float(other._module._scaler.scale) == 2.0**18
    assert other.learner.backend.state.critic._pass.scale is other.scaler._scale


def test_a_users_own_update_may_use_the_scaler(tmp_path: Path) -> None:
    made = agent(tmp_path)
    before, weight = small.weights(made), made.critic_1.net[0].weight
    made.critic_optimizer.zero_grad()
    made.scaler.scale(weight.square().sum()).backward()
    made.scaler.step(made.critic_optimizer)
    made.scaler.update()
    changed = {name for name, each in small.weights(made).items() if not torch.equal(each, before[name])}
    assert changed == {"critic_1.net.0.weight"}


def test_recurrent_models_learn_in_mixed_precision_and_resume(tmp_path: Path) -> None:
    made, plain = (make_recurrent(tmp_path, mixed_precision=mixed, learning_starts=18) for mixed in (True, False))
    kinds = []
    made.critic_1.head.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    for each in (made, plain):
        torch.manual_seed(0)
        trained(each, small.still(steps=7), 20)
    assert torch.bfloat16 in kinds
    for name, theirs in small.weights(plain).items():
        torch.testing.assert_close(small.weights(made)[name], theirs, rtol=0, atol=5e-3)
    made.scaler._scale.fill_(8.0)
    made.save(str(tmp_path / "agent.pt"))
    other = make_recurrent(tmp_path, mixed_precision=True)
    other.load(str(tmp_path / "agent.pt"))
    assert other.scaler.get_scale() == 8.0
