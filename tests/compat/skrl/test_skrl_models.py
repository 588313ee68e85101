"""Models and mixins: their distributions, their parameters, their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import nn

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.errors import SpaceError, UsageError

SPACES = {"observation_space": small.OBSERVATIONS, "action_space": small.ACTIONS}


def policy(mixin: Any = None, mean: float = 0.0, log_std: float = 0.0, **options: Any) -> Any:
    """A policy with the same mean and deviation everywhere."""
    mixin = skrl.GaussianMixin if mixin is None else mixin

    class Own(mixin, skrl.Model):
        def __init__(self) -> None:
            skrl.Model.__init__(self, device="cpu", **SPACES)
            mixin.__init__(self, **options)
            self.net = nn.Linear(3, 2)

        def compute(self, inputs: Any, role: str) -> Any:
            self.role = role
            return torch.full((len(inputs["observations"]), 2), mean), {"log_std": torch.full((2,), log_std)}

    return Own()


def inputs(rows: int = 4000, **others: Any) -> dict[str, Any]:
    return {"observations": torch.zeros(rows, 3), "states": None, **others}


@pytest.mark.parametrize("mixin", [skrl.GaussianMixin, skrl.MultivariateGaussianMixin])
def test_actions_are_normal_in_the_environments_units(mixin: Any) -> None:
    torch.manual_seed(0)
    model = policy(mixin, mean=5.0, log_std=0.5)
    actions, outputs = model.act(inputs(), role="policy")
    assert model.role == "policy"
    assert float(actions.mean()) == pytest.approx(5.0, abs=0.1)  # beyond the limits of +-2: not squashed
    assert float(actions.std()) == pytest.approx(torch.tensor(0.5).exp().item(), abs=0.05)
    distribution = model.distribution(role="policy")
    expected = distribution.log_prob(actions)
    expected = expected.sum(-1) if mixin is skrl.GaussianMixin else expected
    torch.testing.assert_close(outputs["log_prob"], expected.unsqueeze(1), rtol=1e-4, atol=1e-4)
    entropy = distribution.entropy()
    entropy = entropy.sum(-1) if mixin is skrl.GaussianMixin else entropy
    torch.testing.assert_close(model.get_entropy(role="policy"), entropy.unsqueeze(1))
    assert torch.equal(outputs["mean_actions"], torch.full((4000, 2), 5.0))
    assert policy(mixin).distribution() is None
    assert float(policy(mixin).get_entropy()) == 0.0


@pytest.mark.parametrize("mixin", [skrl.GaussianMixin, skrl.MultivariateGaussianMixin])
def test_clipping(mixin: Any) -> None:
    torch.manual_seed(0)
    clipped, outputs = policy(mixin, mean=5.0, clip_actions=True).act(inputs())
    assert float(clipped.max()) == 2.0
    assert float(outputs["mean_actions"].max()) == 5.0
    means = policy(mixin, mean=5.0, clip_mean_actions=True).act(inputs())
    assert float(means[1]["mean_actions"].max()) == 2.0
    assert float(means[0].max()) > 2.0
    assert float(policy(mixin, log_std=9.0).act(inputs())[1]["log_std"].max()) == 2.0
    assert float(policy(mixin, log_std=9.0, max_log_std=3).act(inputs())[1]["log_std"].max()) == 3.0
    assert float(policy(mixin, log_std=-90.0).act(inputs())[1]["log_std"].max()) == -20.0
    assert float(policy(mixin, log_std=-90.0, min_log_std=-5).act(inputs())[1]["log_std"].min()) == -5.0
    assert float(policy(mixin, log_std=9.0, clip_log_std=False).act(inputs())[1]["log_std"].max()) == 9.0


def test_reduction_and_taken_actions() -> None:
    taken = torch.tensor([[1.0, 2.0]])
    each = {
        name: policy(reduction=name).act(inputs(1, taken_actions=taken))[1]["log_prob"]
        for name in ("none", "sum", "mean", "prod")
    }
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(taken)
    torch.testing.assert_close(each["none"], expected)
    torch.testing.assert_close(each["sum"], expected.sum(1, keepdim=True))
    torch.testing.assert_close(each["mean"], expected.mean(1, keepdim=True))
    torch.testing.assert_close(each["prod"], expected.prod(1, keepdim=True))
    with pytest.raises(UsageError, match="reduction='median' is unknown"):
        policy(reduction="median")


def test_a_log_probability_that_is_not_reduced_counts_as_its_mean(tmp_path: Path) -> None:
    agents = []
    for reduction in ("none", "mean"):
        agent = small.make_agent(tmp_path, models=small.make_models(reduction=reduction))
        agent.memory.add_samples(**small.transitions(20))
        torch.manual_seed(0)
        agent.update(timestep=0, timesteps=1)
        agents.append(small.weights(agent))
    for name in agents[0]:
        torch.testing.assert_close(agents[0][name], agents[1][name])


def test_deterministic_mixin_clips_where_asked() -> None:
    assert float(policy(skrl.DeterministicMixin, mean=5.0).act(inputs(1))[0].max()) == 5.0
    assert float(policy(skrl.DeterministicMixin, mean=5.0, clip_actions=True).act(inputs(1))[0].max()) == 2.0
    unbounded = policy(skrl.DeterministicMixin, mean=5.0, clip_actions=True)
    unbounded._limits = None, None
    assert float(unbounded.act(inputs(1))[0].max()) == 5.0


def test_sizes_of_spaces_and_dict_observations() -> None:
    space = gym.spaces.Dict({"b": gym.spaces.Box(0, 1, (2,)), "a": gym.spaces.Box(0, 1, (2, 2))})
    model = skrl.Model(observation_space=space, state_space=small.STATES, action_space=small.ACTIONS)
    assert (model.num_observations, model.num_states, model.num_actions) == (6, 4, 2)
    assert model.get_specification() == {}


def test_initialisation_by_torchs_functions() -> None:
    model = policy()
    model.init_parameters("constant_", 3.0)
    assert all(bool((each == 3.0).all()) for each in model.parameters())
    model.init_weights("uniform_", a=-0.1, b=0.1)
    assert float(model.net.weight.detach().abs().max()) <= 0.1
    assert float(model.net.bias.detach().min()) == 3.0
    model.init_biases(val=0.5)
    assert float(model.net.bias.detach().max()) == 0.5
    model.init_biases("uniform_", 5.0, 6.0)
    assert 5.0 <= float(model.net.bias.detach().min()) <= float(model.net.bias.detach().max()) <= 6.0
    with pytest.raises(UsageError, match="method_name='nothing_'"):
        model.init_parameters("nothing_")


def test_lazy_modules_are_initialised() -> None:
    class Lazy(skrl.GaussianMixin, skrl.Model):
        def __init__(self) -> None:
            skrl.Model.__init__(self, device="cpu", **SPACES)
            skrl.GaussianMixin.__init__(self)
            self.net, self.log_std = nn.LazyLinear(2), nn.Parameter(torch.zeros(2))

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    model = Lazy()
    model.init_state_dict(role="policy")
    assert model.net.weight.shape == (2, 3)
    other = Lazy()
    other.init_state_dict({"observations": torch.zeros(1, 7)})  # instead of a value of the space
    assert other.net.weight.shape == (2, 7)
    agent = skrl.SAC(models={"policy": Lazy()}, device="cpu")
    assert agent.policy.net.weight.shape == (2, 3)


def test_random_actions_are_new_ones_within_the_limits() -> None:
    torch.manual_seed(0)
    model = policy()
    drawn, outputs = model.random_act(inputs(1000), role="policy")
    assert outputs == {}
    assert float(drawn.min()) < -1.9
    assert float(drawn.max()) > 1.9
    assert not torch.equal(drawn, model.random_act(inputs(1000))[0])
    model.action_space = gym.spaces.Box(-torch.inf, torch.inf, (2,))
    assert model.random_act(inputs(5))[0].shape == (5, 2)
    model.action_space = gym.spaces.Discrete(3)
    with pytest.raises(SpaceError, match="not a Box"):
        model.random_act(inputs(5))


def test_parameters_are_moved_frozen_saved_and_loaded(tmp_path: Path) -> None:
    one, other = policy(), policy()
    one.init_parameters("constant_", 1.0)
    other.init_parameters("constant_", 3.0)
    one.update_parameters(other, polyak=0.25)
    assert float(one.net.bias.detach()[0]) == 1.5
    one.update_parameters(other)
    assert float(one.net.bias.detach()[0]) == 3.0
    one.freeze_parameters()
    assert not any(each.requires_grad for each in one.parameters())
    one.freeze_parameters(False)
    assert all(each.requires_grad for each in one.parameters())
    one.enable_training_mode(False)
    assert not one.training
    one.enable_training_mode()
    assert one.net.training
    path = str(tmp_path / "model.pt")
    one.save(path)
    other.init_parameters("constant_", 0.0)
    other.load(path)
    assert float(other.net.bias.detach()[0]) == 3.0
    one.save(path, state_dict={name: tensor * 0 for name, tensor in one.state_dict().items()})
    other.load(path)
    assert float(other.net.bias.detach()[0]) == 0.0


def test_a_model_without_compute_or_mixin_says_so() -> None:
    model = skrl.Model(**SPACES)
    with pytest.raises(NotImplementedError, match="no method compute"):
        model.compute({}, "policy")
    with pytest.raises(NotImplementedError, match="place a mixin before Model"):
        model({})
