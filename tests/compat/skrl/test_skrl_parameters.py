"""Parameters of skrl's interface that its own code ignores, or nearly so, act as they are documented."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.compat.skrl.utils.spaces import torch as spaces
from offbeat.errors import UsageError

STEP = {"timestep": 0, "timesteps": 100}
ROWS = {"observations": torch.zeros(4, 3), "states": None}


def adam(rate: float = 1e-3) -> torch.optim.Adam:
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate)


# The agent.


def test_the_spaces_that_are_passed_count_and_not_those_of_the_policy(tmp_path: Path) -> None:
    models = small.make_models(states=small.STATES)
    for model in models.values():
        model.observation_space = model.state_space = model.action_space = gym.spaces.Box(-1.0, 1.0, (9,))
    agent = small.make_agent(tmp_path, models=models, states=small.STATES)
    sizes = {name: agent.memory.get_tensor_by_name(name).shape[-1] for name in ("observations", "states", "actions")}
    assert sizes == {"observations": 3, "states": 4, "actions": 2}
    assert agent.observation_space is small.OBSERVATIONS
    assert agent.action_space is small.ACTIONS
    with pytest.raises(UsageError, match=r"raised RuntimeError on two rows of zeros \(observations 9"):
        skrl.SAC(models={"policy": models["policy"]}, state_space=small.STATES, action_space=small.ACTIONS)
    with pytest.raises(UsageError, match=r"gave \(2, 2\) for 2 rows; compute must return \(2, 9\)"):
        skrl.SAC(models={"policy": models["policy"]}, observation_space=small.OBSERVATIONS, state_space=small.STATES)


def test_actions_are_of_observations_and_states(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, states=small.STATES)
    torch.manual_seed(0)
    given = torch.randn(4, 3), torch.randn(4, 4)
    expected, _ = agent.policy.compute({"observations": given[0], "states": given[1]}, "policy")
    actions, outputs = agent.act(*given, **STEP)
    torch.testing.assert_close(outputs["mean_actions"], expected)
    assert not torch.equal(actions, expected)  # drawn
    for other in ((torch.zeros(4, 3), given[1]), (given[0], torch.zeros(4, 4))):
        assert not torch.allclose(agent.act(*other, **STEP)[1]["mean_actions"], expected)


def test_a_transition_is_stored_with_all_its_parts(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, states=small.STATES, experiment={"write_interval": 10})
    rows = small.transitions(1, seed=5, states=True) | {"terminated": torch.tensor([[True]])}
    agent.record_transition(**rows, truncated=torch.tensor([[False]]), infos={}, **STEP)
    assert len(agent.memory) == 1
    for name, tensor in rows.items():
        assert torch.equal(agent.memory.get_tensor_by_name(name)[0], tensor)
    assert list(agent.episodes.returns) == [pytest.approx(float(rows["rewards"]))]
    goes_on = rows | {"terminated": torch.tensor([[False]])}
    agent.record_transition(**goes_on, truncated=torch.tensor([[False]]), infos={}, **STEP)
    assert len(agent.episodes.returns) == 1
    agent.record_transition(**goes_on, truncated=torch.tensor([[True]]), infos={}, **STEP)
    assert len(agent.episodes.returns) == 2
    assert agent.memory.get_tensor_by_name("terminated")[:3].flatten().tolist() == [True, False, False]


def test_after_a_step_timesteps_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For agents of your own, which may use both."""
    agent = small.make_agent(tmp_path, experiment={"write_interval": 4, "checkpoint_interval": 4})
    calls: list[Any] = []
    for name in ("update", "write_checkpoint", "write_tracking_data"):
        monkeypatch.setattr(
            agent, name, lambda *, timestep, timesteps, name=name: calls.append((name, timestep, timesteps))
        )
    agent.post_interaction(timestep=3, timesteps=50)
    assert calls == [("update", 3, 50), ("write_checkpoint", 4, 50), ("write_tracking_data", 4, 50)]


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
    child = os.fork()
    if child == 0:
        memory.get_tensor_by_name("observations")[0, 0] = 9.0
        os._exit(0)
    os.waitpid(child, 0)
    assert bool((memory.tensors["observations"][0, 0] == 9.0).all()) == shared
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


# Devices. torch's `meta` stands for a device that is not the CPU: tensors on it have no values.


def test_tensors_are_on_the_device_that_was_asked_for() -> None:
    memory = skrl.RandomMemory(memory_size=5, device="meta")
    memory.create_tensor("own", size=2)
    memory.add_samples(own=torch.ones(1, 2))
    scaler = skrl.RunningStandardScaler(3, device="meta")
    model = skrl.Model(action_space=small.ACTIONS, device="meta")
    found = {
        "sample": memory.sample(["own"], batch_size=1)[0][0],
        "sample_by_index": memory.sample_by_index(["own"], indexes=[0])[0][0],
        "sample_all": memory.sample_all(["own"])[0][0],
        "scaler": scaler(torch.zeros(1, 3, device="meta"), train=True),
        "random_act": model.random_act(ROWS)[0],
        "limits": spaces.compute_space_limits(small.ACTIONS, device="meta")[0],
        "tensorize_space": spaces.tensorize_space(small.ACTIONS, [1.0, 2.0], device="meta"),
        "sample_space": spaces.sample_space(small.ACTIONS, backend="native", device="meta"),
    }
    assert {name: tensor.device.type for name, tensor in found.items()} == dict.fromkeys(found, "meta")
    assert (memory.device.type, scaler.device.type, model.device.type) == ("meta",) * 3


def test_an_agent_moves_models_that_have_no_device_of_their_own_to_its_device() -> None:
    policy = small.make_models()["policy"]
    del policy.device
    given = {"observation_space": small.OBSERVATIONS, "action_space": small.ACTIONS}
    agent = skrl.SAC(models={"policy": policy}, device="meta", **given)
    assert agent.device.type == next(policy.parameters()).device.type == "meta"
    assert skrl.SAC(models={"policy": small.make_models()["policy"]}, **given).device == skrl.config.torch.device
