"""Every setting and method of SAC changes what it should."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.errors import UsageError

STEP = {"timestep": 0, "timesteps": 100}


def learned(
    directory: Path, updates: int = 1, rows: int = 20, seed: int = 0, states: Any = None, **settings: Any
) -> Any:
    """An agent after some updates on the same rows."""
    agent = small.make_agent(directory, states=states, **settings)
    agent.memory.add_samples(**small.transitions(rows, states=states is not None))
    torch.manual_seed(seed)
    for timestep in range(updates):
        agent.update(timestep=timestep, timesteps=updates)
    return agent


def difference(one: Any, other: Any, model: str) -> float:
    mine, theirs = small.weights(one), small.weights(other)
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine if name.startswith(f"{model}."))


def record(agent: Any, rows: dict[str, Tensor], infos: Any = None, timestep: int = 0) -> None:
    agent.record_transition(
        **{"states": None, "next_states": None, "truncated": torch.zeros_like(rows["terminated"]), **rows},
        infos={} if infos is None else infos,
        timestep=timestep,
        timesteps=100,
    )


class Scale(nn.Module):
    """A preprocessor of a user: multiplies, and remembers how it was called."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.calls = factor, []  # type: ignore[var-annotated]

    def forward(self, x: Any, train: bool = False) -> Any:
        self.calls.append((None if x is None else tuple(x.shape), train))
        return None if x is None else x * self.factor


# Settings.


def test_settings_are_mutable_keyword_only_and_read_at_each_update(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        skrl.SAC_CFG(skrl.ExperimentCfg())  # type: ignore[misc]
    settings = skrl.SAC_CFG()
    settings.batch_size = 5
    agent = small.make_agent(tmp_path)
    agent.memory.add_samples(**small.transitions(20))
    agent.cfg.polyak, agent.cfg.batch_size = 1.0, settings.batch_size
    agent.update(**STEP)
    assert difference_of_targets(agent) == 0.0
    agent.cfg.polyak = 0.5
    agent.update(**STEP)
    assert difference_of_targets(agent) > 0.0


def difference_of_targets(agent: Any) -> float:
    pairs = zip(agent.critic_1.parameters(), agent.target_critic_1.parameters(), strict=True)
    return max(float((mine - slow).detach().abs().max()) for mine, slow in pairs)


def test_settings_may_be_a_dictionary_and_a_wrong_key_is_named(tmp_path: Path) -> None:
    assert small.make_agent(tmp_path, polyak=0.25).cfg.polyak == 0.25
    with pytest.raises(KeyError, match=r"no configuration key 'batchsize'.*batch_size"):
        small.make_agent(tmp_path, batchsize=3)
    with pytest.raises(KeyError, match="no configuration key 'write_intervall'"):
        small.make_agent(tmp_path, experiment={"write_intervall": 3})
    lacking = SimpleNamespace(**{name: value for name, value in vars(skrl.SAC_CFG()).items() if name != "polyak"})
    with pytest.raises(KeyError, match="has no key 'polyak'"):
        skrl.SAC(models=small.make_models(), observation_space=small.OBSERVATIONS, cfg=lacking)  # type: ignore[arg-type]


def test_gradient_steps_are_updates_for_each_vector_step(tmp_path: Path) -> None:
    assert learned(tmp_path, gradient_steps=3).learner.updates == 3
    assert learned(tmp_path, gradient_steps=0).learner.updates == 0


def test_batch_size_is_the_number_of_rows_that_models_get(tmp_path: Path) -> None:
    agent = learned(tmp_path)
    seen = []
    own = agent.critic_1.compute
    agent.critic_1.compute = lambda inputs, role: (seen.append(len(inputs["observations"])), own(inputs, role))[1]
    agent.cfg.batch_size = 11
    agent.update(**STEP)
    assert set(seen) == {11}


def test_discount_factor_weighs_the_next_value(tmp_path: Path) -> None:
    assert difference(learned(tmp_path, discount_factor=0.0), learned(tmp_path, discount_factor=0.9), "critic_1") > 1e-6
    zero, one = (learned(tmp_path, discount_factor=each, learn_entropy=False) for each in (0.0, 1.0))
    for agent in (zero, one):
        agent.memory.reset()
        agent.memory.add_samples(**{**small.transitions(20), "terminated": torch.ones(20, 1, dtype=torch.bool)})
    for name in small.NAMES:
        one.models[name].load_state_dict(zero.models[name].state_dict())
    one.critic_optimizer.load_state_dict(zero.critic_optimizer.state_dict())
    one.streams.restore(zero.streams.state())
    for agent in (zero, one):
        torch.manual_seed(0)
        agent.update(**STEP)
    assert difference(zero, one, "critic_1") == 0.0  # after termination no value counts


def test_polyak_moves_the_targets_by_a_share(tmp_path: Path) -> None:
    still, whole = learned(tmp_path, polyak=0.0), learned(tmp_path, polyak=1.0)
    assert difference_of_targets(whole) == 0.0
    fresh = small.make_agent(tmp_path)
    assert difference(still, fresh, "target_critic_1") == 0.0


def test_learning_rates_are_of_policy_critics_and_entropy(tmp_path: Path) -> None:
    fresh = small.make_agent(tmp_path)
    for place, moved in enumerate(("policy", "critic_1", "entropy")):
        rates = tuple(1e-3 if place == each else 0.0 for each in range(3))
        agent = learned(tmp_path, learning_rate=rates)
        entropy = float((agent.log_entropy_coefficient - fresh.log_entropy_coefficient).detach().abs())
        assert (difference(agent, fresh, "policy") > 0) == (moved == "policy")
        assert (difference(agent, fresh, "critic_2") > 0) == (moved == "critic_1")
        assert (entropy > 0) == (moved == "entropy")
    assert [each.rate for each in learned(tmp_path, learning_rate=0.5)._optimizers] == [0.5] * 3


def test_schedulers_get_real_optimizers_and_step_once_per_gradient_step(tmp_path: Path) -> None:
    kind = torch.optim.lr_scheduler.StepLR
    one = learned(tmp_path, 2, gradient_steps=3, learning_rate=0.1, learning_rate_scheduler=kind,
                  learning_rate_scheduler_kwargs={"step_size": 1, "gamma": 0.5})  # fmt: skip
    assert [each.rate for each in one._optimizers] == [0.1 / 2**6] * 3
    assert all(isinstance(each, torch.optim.Optimizer) for each in one._optimizers)
    kwargs = ({}, {"step_size": 1, "gamma": 0.0}, {"step_size": 1, "gamma": 0.1})
    three = learned(tmp_path, 1, learning_rate=0.1, learning_rate_scheduler=(None, kind, kind),
                    learning_rate_scheduler_kwargs=kwargs)  # fmt: skip
    np.testing.assert_allclose([each.rate for each in three._optimizers], [0.1, 0.0, 0.01])
    before = small.weights(three)
    three.update(**STEP)  # the critics' rate is 0 now, and our learner uses it
    after = small.weights(three)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("critic_"))
    assert any(not torch.equal(after[name], before[name]) for name in before if name.startswith("policy"))


def test_kl_adaptive_rate_stays_without_a_divergence(tmp_path: Path) -> None:
    agent = learned(tmp_path, 3, learning_rate=0.1, learning_rate_scheduler=skrl.KLAdaptiveRL)
    assert agent.policy_optimizer.rate == 0.1
    agent.policy_scheduler.step(1.0)
    assert agent.policy_optimizer.rate == pytest.approx(0.1 / 1.5)


def test_an_optimizer_among_the_kwargs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="optimizer, which the agent passes itself"):
        small.make_agent(tmp_path, learning_rate_scheduler_kwargs={"optimizer": None})


def test_any_preprocessor_is_called_with_train(tmp_path: Path) -> None:
    settings = {"observation_preprocessor": Scale, "observation_preprocessor_kwargs": {"factor": 0.0}}
    agent = learned(tmp_path, **settings)
    calls = agent._observation_preprocessor.calls
    assert calls == [((8, 3), True)] * 2  # at s and s'
    actions = [
        agent.act(torch.full((1, 3), each), None, timestep=5, timesteps=9)[1]["mean_actions"] for each in (0.0, 9.0)
    ]
    assert torch.equal(*actions)
    assert calls[2:] == [((1, 3), False)] * 2
    settings = {"state_preprocessor": Scale, "state_preprocessor_kwargs": {"factor": 2.0}}
    agent = learned(tmp_path, states=small.STATES, **settings)
    assert agent._state_preprocessor.calls == [((8, 4), True)] * 2
    assert difference(agent, learned(tmp_path, states=small.STATES), "critic_1") > 0


def test_random_timesteps_act_within_the_limits_and_not_by_the_policy(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, random_timesteps=2)
    observations = torch.zeros(500, 3)
    random, outputs = agent.act(observations, None, timestep=1, timesteps=9)
    assert outputs == {}
    assert float(random.abs().max()) <= 2.0
    assert float(random.std()) == pytest.approx(4 / 12**0.5, abs=0.1)
    assert not torch.equal(random, agent.act(observations, None, timestep=1, timesteps=9)[0])
    assert "log_prob" in agent.act(observations, None, timestep=2, timesteps=9)[1]


def test_learning_starts_counts_vector_steps(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, learning_starts=2)
    agent.memory.add_samples(**small.transitions(20))
    for timestep in range(4):
        agent.post_interaction(timestep=timestep, timesteps=4)
    assert agent.learner.updates == 2


def test_with_learning_starts_0_the_first_row_fills_a_batch(tmp_path: Path) -> None:
    for replacement in (False, True):
        memory = skrl.RandomMemory(memory_size=64, replacement=replacement)
        agent = small.make_agent(tmp_path, memory)
        record(agent, small.transitions(1))
        agent.post_interaction(**STEP)
        assert agent.learner.updates == 1
        assert len(agent._draws(1, 8, 0.9).columns["obs"][0]) == 8


def test_grad_norm_clip_limits_the_step(tmp_path: Path) -> None:
    plain, small_clip, off = (learned(tmp_path, 2, grad_norm_clip=each) for each in (0, 1e-9, -1))
    assert difference(plain, off, "critic_1") == 0.0
    assert difference(plain, small_clip, "critic_1") > 0
    assert float(small_clip.critic_optimizer._adam.mean.norm()) < 1e-9


def test_learn_entropy_initial_value_and_target(tmp_path: Path) -> None:
    fixed = learned(tmp_path, 3, learn_entropy=False, initial_entropy_value=0.7)
    assert float(fixed._entropy_coefficient) == pytest.approx(0.7)
    up, down = (learned(tmp_path, 3, initial_entropy_value=0.7, target_entropy=each) for each in (50.0, -50.0))
    assert float(down._entropy_coefficient) < 0.7 < float(up._entropy_coefficient)
    assert learned(tmp_path)._target_entropy == -2.0
    assert difference(fixed, learned(tmp_path, 3, learn_entropy=False, initial_entropy_value=0.0), "policy") > 0


def test_rewards_shaper_gets_rewards_and_timesteps(tmp_path: Path) -> None:
    seen = []

    def shaper(rewards: Tensor, timestep: int, timesteps: int) -> Tensor:
        seen.append((timestep, timesteps))
        return rewards * 0.0 + 7.0

    agent = small.make_agent(tmp_path, rewards_shaper=shaper)
    record(agent, small.transitions(1), timestep=4)
    assert seen == [(4, 100)]
    assert agent.memory.get_tensor_by_name("rewards")[0, 0].item() == 7.0


def test_mixed_precision_computes_in_lower_precision_and_still_learns(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, mixed_precision=True, grad_norm_clip=10.0)
    agent.memory.add_samples(**small.transitions(20))
    kinds = []
    agent.critic_1.net[0].register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    before, plain = small.weights(agent), learned(tmp_path, grad_norm_clip=10.0)
    torch.manual_seed(0)
    agent.update(**STEP)
    assert set(kinds) == {torch.bfloat16}
    assert agent.scaler.is_enabled()
    moved = small.weights(agent)
    assert all(not torch.equal(moved[name], before[name]) for name in before)
    assert difference(agent, plain, "critic_1") < 3e-3  # the same step, but for rounding
    kinds.clear()
    agent.policy.net[0].register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    action, _ = agent.act(torch.zeros(1, 3), None, timestep=1, timesteps=1)
    assert kinds == [torch.bfloat16]  # acting, too
    assert action.dtype == torch.float32


def test_mixed_precision_leaves_out_a_step_that_is_not_finite(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, mixed_precision=True)
    rows = small.transitions(20)
    agent.memory.add_samples(**{**rows, "rewards": torch.full((20, 1), float("inf"))})
    before, scale = small.weights(agent), agent.scaler.get_scale()
    agent.update(**STEP)
    after = small.weights(agent)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("critic_"))
    assert agent.scaler.get_scale() < scale


# Arguments of SAC.


def test_only_the_policy_is_needed_for_evaluation(tmp_path: Path) -> None:
    models = {"policy": small.make_models()["policy"]}
    agent = skrl.SAC(models=models, observation_space=small.OBSERVATIONS, action_space=small.ACTIONS)
    agent.init()
    actions, outputs = agent.act(torch.zeros(4, 3), None, timestep=0, timesteps=1)
    assert actions.shape == outputs["mean_actions"].shape == (4, 2)
    assert outputs["log_prob"].shape == (4, 1)
    with pytest.raises(UsageError, match="has no memory, which training needs"):
        agent.enable_training_mode(True)
    agent.save(str(tmp_path / "policy.pt"))
    assert list(torch.load(tmp_path / "policy.pt", weights_only=True)) == ["policy"]


def test_spaces_default_to_those_of_the_policy_and_size_the_memory(tmp_path: Path) -> None:
    agent = skrl.SAC(models=small.make_models(), memory=skrl.RandomMemory(memory_size=4))
    agent.init()
    assert agent.memory.get_tensor_by_name("actions").shape == (4, 1, 2)
    assert "states" not in agent.memory.get_tensor_names()
    with_states = small.make_agent(tmp_path, states=small.STATES)
    assert with_states.memory.get_tensor_by_name("next_states").shape == (64, 1, 4)


def test_privileged_states_are_stored_with_their_transition(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, states=small.STATES)
    agent.enable_training_mode(True)
    row = small.transitions(1, states=True)
    record(agent, row)
    for name in ("states", "next_states"):
        assert torch.equal(agent.memory.get_tensor_by_name(name)[0], row[name])
        assert row[name].abs().min() > 0


def test_device_is_where_the_agent_computes(tmp_path: Path) -> None:
    agent = skrl.SAC(models=small.make_models(), device="cpu")
    assert agent.device == torch.device("cpu")
    assert agent.learner is not None
    assert agent.learner.backend.device == "cpu"


def test_a_memory_of_the_user_runs_as_it_is(tmp_path: Path) -> None:
    class Own(skrl.Memory):
        def sample(self, names: list[str], *, batch_size: int, **options: Any) -> list[list[Any]]:
            self.asked = (list(names), batch_size)
            return self.sample_by_index(names, indexes=[0] * batch_size)

    agent = small.make_agent(tmp_path, Own(memory_size=16))
    agent.memory.add_samples(**small.transitions(20))
    agent.update(**STEP)
    names = ["observations", "states", "actions", "rewards", "next_observations", "next_states", "terminated"]
    assert agent.memory.asked == (names, 8)
    assert agent.learner.updates == 1


# Methods.


def test_the_users_modules_hold_the_trained_weights_and_gradients(tmp_path: Path) -> None:
    models = small.make_models()
    before = {name: next(model.parameters()).detach().clone() for name, model in models.items()}
    agent = small.make_agent(tmp_path, models=models)
    agent.memory.add_samples(**small.transitions(20))
    agent.update(**STEP)
    state = agent.learner.backend.state
    for name, model in models.items():
        assert not torch.equal(next(model.parameters()), before[name])
        assert all(parameter.requires_grad == (not name.startswith("target")) for parameter in model.parameters())
    assert models["policy"].net[0].weight.data_ptr() in range(
        state.actor.flat.data_ptr(), state.actor.flat.data_ptr() + 4 * len(state.actor.flat)
    )
    gradients = torch.cat([each.grad.reshape(-1) for each in models["policy"].parameters()])  # type: ignore[union-attr]
    assert torch.equal(gradients, state.actor.gradient)
    assert float(gradients.abs().max()) > 0


def test_drawn_actions_are_stored_as_they_are(tmp_path: Path) -> None:
    """skrl's Gaussian is not squashed: an action beyond the limits reaches replay in the environment's own units."""
    agent = small.make_agent(tmp_path)
    record(agent, {**small.transitions(1), "actions": torch.tensor([[7.5, -9.0]])})
    assert agent.memory.get_tensor_by_name("actions")[0, 0].tolist() == [7.5, -9.0]


def test_transitions_are_stored_in_training_only(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path)
    agent.enable_training_mode(False)
    assert agent.training is False
    record(agent, small.transitions(1))
    assert len(agent.memory) == 0
    agent.enable_training_mode(True)
    assert agent.training is True
    record(agent, small.transitions(1))
    assert len(agent.memory) == 1


def test_models_modes(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path)
    assert not any(model.training for model in agent.models.values())
    agent.enable_models_training_mode(True)
    assert all(module.training for model in agent.models.values() for module in model.modules())
    agent.enable_models_training_mode(False)
    agent.enable_training_mode(True, apply_to_models=True)
    assert all(model.training for model in agent.models.values())
    modes = []
    agent.policy.net.register_forward_hook(lambda module, inputs, output: modes.append(module.training))
    agent.memory.add_samples(**small.transitions(20))
    agent.post_interaction(**STEP)
    assert set(modes) == {True}
    assert not agent.policy.net.training


def test_pre_interaction_changes_nothing(tmp_path: Path) -> None:
    agent = learned(tmp_path)
    before = small.weights(agent)
    agent.pre_interaction(**STEP)
    assert all(torch.equal(before[name], each) for name, each in small.weights(agent).items())


def test_str_names_every_setting(tmp_path: Path) -> None:
    text = str(small.make_agent(tmp_path))
    assert all(field.name in text for field in dataclasses.fields(skrl.SAC_CFG))
