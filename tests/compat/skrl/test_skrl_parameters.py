"""Parameters of skrl's interface that its own code ignores, or nearly so, act as they are documented."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import skrl_agents as small
from offbeat.compat import skrl

STEP = {"timestep": 0, "timesteps": 100}
ROWS = {"observations": torch.zeros(4, 3), "states": None}


def adam(rate: float = 1e-3) -> torch.optim.Adam:
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate)


# Schedulers.


def test_a_verbose_scheduler_logs_the_rate_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(skrl.logger, "info", messages.append)
    skrl.KLAdaptiveLR(adam()).step(1.0)
    loud = skrl.KLAdaptiveLR(adam(), verbose=True, lr_factor=2.0)
    assert messages == []
    loud.step(1.0)
    loud.step()
    assert messages == [f"epoch {epoch}: the learning rate of group 0 is 5.0000e-04" for epoch in (1, 2)]


def test_epochs_are_counted_or_set() -> None:
    scheduler = skrl.KLAdaptiveLR(adam())
    assert scheduler.last_epoch == 0
    scheduler.step(1.0)
    assert scheduler.last_epoch == 1
    scheduler.step(1.0, epoch=7)
    assert scheduler.last_epoch == 7
    scheduler.step()
    assert scheduler.last_epoch == scheduler.state_dict()["last_epoch"] == 8


# Roles.


def model_of(mixin: Any, **options: Any) -> Any:
    """A model whose `compute` notes its roles; its means are 1 in the role `loud`, else 0."""

    class Noted(mixin, skrl.Model):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            skrl.Model.__init__(self, observation_space=small.OBSERVATIONS, action_space=small.ACTIONS, device="cpu")
            mixin.__init__(self, **options)
            self.roles: list[str] = []

        def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            self.roles.append(role)
            loud = float(role == "loud")
            return torch.full((len(inputs["observations"]), 2), loud), {"log_std": torch.full((2,), loud)}

    return Noted()


MIXINS = [skrl.GaussianMixin, skrl.MultivariateGaussianMixin, skrl.DeterministicMixin]


@pytest.mark.parametrize("mixin", MIXINS)
def test_the_role_of_a_model_is_what_compute_gets_unless_act_has_another(mixin: Any) -> None:
    model, without = model_of(mixin, role="mine"), model_of(mixin)
    for each in (model, without):
        each.act(ROWS)
        each.act(ROWS, role="other")
        each.forward(ROWS, role="third")
        each.init_state_dict(role="fourth")
    assert model.roles == ["mine", "other", "third", "fourth"]
    assert without.roles == ["", "other", "third", "fourth"]


@pytest.mark.parametrize("mixin", MIXINS[:2])
def test_a_model_with_two_roles_has_a_distribution_for_each(mixin: Any) -> None:
    model = model_of(mixin)
    assert model.distribution(role="loud") is None
    assert model.get_entropy(role="loud") == 0.0
    model.act(ROWS, role="loud")
    model.act(ROWS, role="quiet")
    assert (model.distribution(role="loud").mean == 1.0).all()
    assert (model.distribution(role="quiet").mean == 0.0).all()
    assert (model.get_entropy(role="loud") == model.get_entropy(role="quiet") + 2.0).all()
    for role in ("", "never acted"):  # the last of any role
        assert (model.distribution(role=role).mean == 0.0).all()


# Shared memory.


@pytest.mark.parametrize("shared", [False, True])
def test_a_process_writes_to_shared_tensors_for_all(shared: bool) -> None:
    memory = skrl.RandomMemory(memory_size=5, num_envs=2)
    memory.create_tensor("observations", size=3, dtype=torch.float32)
    memory.create_tensor("terminated", size=1, dtype=torch.bool)
    rows = {"observations": torch.arange(6.0).view(2, 3), "terminated": torch.tensor([[True], [False]])}
    for _ in range(7):  # the ring goes round
        memory.add_samples(**rows)
    before = {name: tensor.clone() for name, tensor in memory.tensors.items()}
    if shared:
        memory.share_memory()
    assert [tensor.is_shared() for tensor in memory.tensors.values()] == [shared, shared]
    for name, tensor in memory.tensors.items():
        assert torch.equal(tensor, before[name])
    assert len(memory) == 10
    assert (memory.memory_index, memory.env_index, memory.filled) == (2, 0, True)
    if shared:
        # A new process: one that is forked from threads of torch or JAX may never end.
        written = (memory.get_tensor_by_name("observations"), (0, 0), 9.0)
        child = torch.multiprocessing.get_context("spawn").Process(target=operator.setitem, args=written)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert (memory.tensors["observations"][0, 0] == 9.0).all()
    memory.add_samples(**rows)
    sample = memory.sample_by_index(["observations"], indexes=[4, 5])[0][0]
    np.testing.assert_array_equal(sample, rows["observations"])


def test_a_memory_may_be_shared_before_it_has_tensors(tmp_path: Path) -> None:
    memory = skrl.RandomMemory(memory_size=30)
    memory.share_memory()
    agent = small.make_agent(tmp_path, memory=memory)
    memory.add_samples(**small.transitions(20))
    agent.update(**STEP)
    assert agent.learner.updates == 1
    assert all(tensor.is_shared() for tensor in memory.tensors.values())


# Settings that change.


def test_learning_the_entropy_coefficient_may_be_switched_off_and_on(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, learn_entropy=False)
    agent.memory.add_samples(**small.transitions(20))
    found = []
    for learn in (False, True, False):
        agent.cfg.learn_entropy = learn
        agent.update(**STEP)
        found.append(agent.log_entropy_coefficient.item())
    assert found[0] == pytest.approx(np.log(0.2))
    assert found[1] != found[0]
    assert found[2] == found[1]  # it stays where learning left it
    agent.save(str(tmp_path / "agent.pt"))
    saved = torch.load(tmp_path / "agent.pt", weights_only=True)
    assert float(saved["log_entropy_coefficient"]) == found[2]


# Spaces.


def test_spaces_that_are_passed_count_before_those_of_the_policy() -> None:
    models = small.make_models()
    policy = models["policy"]
    other = gym.spaces.Box(-5.0, 5.0, (3,)), gym.spaces.Box(-5.0, 5.0, (2,))
    agent = skrl.SAC(models=models, observation_space=other[0], action_space=other[1])
    assert (agent.observation_space, agent.action_space) == other
    own = skrl.SAC(models=models)
    assert (own.observation_space, own.action_space) == (policy.observation_space, policy.action_space)


def test_the_policy_acts_on_the_observations_and_states_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = small.make_agent(tmp_path, states=small.STATES)
    seen, act = [], agent.policy.act
    monkeypatch.setattr(agent.policy, "act", lambda inputs, role="": (seen.append(inputs), act(inputs, role=role))[1])
    observations, states = torch.full((2, 3), 0.25), torch.full((2, 4), 0.5)
    agent.act(observations, states, timestep=0, timesteps=1)
    assert torch.equal(seen[0]["observations"], observations)
    assert torch.equal(seen[0]["states"], states)
