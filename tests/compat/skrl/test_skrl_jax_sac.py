"""Settings and methods of SAC in JAX change what they should. What both frameworks share is tested with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import skrl_jax_agents as small
from offbeat.compat.skrl.agents.jax.sac import SAC, SAC_CFG
from offbeat.compat.skrl.models.jax import Model
from offbeat.compat.skrl.resources.schedulers.jax import KLAdaptiveLR, KLAdaptiveRL, kl_adaptive
from offbeat.errors import UsageError

STEP = {"timestep": 0, "timesteps": 100}


def moved(agent: Any, before: dict[str, Any]) -> set[str]:
    """The models whose weights changed."""
    after = small.weights(agent)
    return {name.partition("[")[0] for name in after if np.abs(after[name] - before[name]).max() > 1e-6}


def with_rows(agent: Any, states: bool = False) -> Any:
    agent.memory.add_samples(**small.transitions(20, states=states))
    return agent


def test_three_learning_rates_and_changed_settings_take_effect(tmp_path: Path) -> None:
    agent = with_rows(small.make_agent(tmp_path, learning_rate=(0.0, 1e-3, 0.0), polyak=1.0))
    before, coefficient = small.weights(agent), float(agent.log_entropy_coefficient.value[0])
    agent.update(**STEP)
    assert moved(agent, before) == {"critic_1", "critic_2", "target_critic_1", "target_critic_2"}
    assert float(agent.log_entropy_coefficient.value[0]) == coefficient
    after = small.weights(agent)
    for name in (each for each in after if each.startswith("critic")):
        np.testing.assert_allclose(after[f"target_{name}"], after[name], rtol=0, atol=1e-6)

    agent.policy_learning_rate, agent.critic_learning_rate, agent.entropy_learning_rate = 1e-3, 0.0, 1e-2
    agent.update(**STEP)
    assert moved(agent, after) == {"policy"}
    assert 1e-3 < abs(float(agent.log_entropy_coefficient.value[0]) - coefficient) < 2e-2
    assert float(agent._entropy_coefficient[0]) == pytest.approx(np.exp(agent.log_entropy_coefficient.value[0]))

    after, agent.cfg.polyak, agent.critic_learning_rate = small.weights(agent), 0.0, 1e-3
    agent.cfg.gradient_steps, agent.cfg.batch_size = 3, 5
    agent.update(**STEP)
    assert moved(agent, after) == {"policy", "critic_1", "critic_2"}
    assert agent.learner.updates == 5
    agent.cfg.polyak = 2
    with pytest.raises(UsageError, match="polyak=2 is out of range"):
        agent.update(**STEP)


def test_schedules_of_optax_give_the_rates_of_policy_critics_and_coefficient(tmp_path: Path) -> None:
    kinds = optax.linear_schedule, None, optax.constant_schedule
    options = {"init_value": 1e-2, "end_value": 0.0, "transition_steps": 4}, {}, {"value": 5e-3}
    experiment = {"write_interval": 10}
    agent = with_rows(
        small.make_agent(
            tmp_path,
            learning_rate_scheduler=kinds,
            learning_rate_scheduler_kwargs=options,
            learning_rate=2e-3,
            experiment=experiment,
        )
    )
    assert agent._rates() == pytest.approx([1e-2, 2e-3, 5e-3])
    for done in range(1, 4):
        agent.update(**STEP)
        assert agent._rates() == pytest.approx([1e-2 * (1 - done / 4), 2e-3, 5e-3])
    agent.update(**STEP)
    before = small.weights(agent)
    agent.update(**STEP)
    assert "policy" not in moved(agent, before)  # the schedule has reached 0
    tracked = agent.tracked()
    assert tracked["Learning / Policy learning rate"] == pytest.approx(np.mean([7.5e-3, 5e-3, 2.5e-3, 0, 0]))
    assert {"Loss / Policy loss", "Loss / Critic loss", "Loss / Entropy loss"} <= tracked.keys()
    assert tracked["Q-network / Q1 (min)"] < tracked["Q-network / Q1 (mean)"] < tracked["Q-network / Q1 (max)"]
    assert {"Q-network / Q2 (max)", "Target / Target (mean)", "Coefficient / Entropy coefficient"} <= tracked.keys()


def test_the_adaptive_schedule_leaves_the_rate_of_sac(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, learning_rate_scheduler=KLAdaptiveLR, learning_rate=3e-3)
    assert agent._rates() == [3e-3] * 3
    agent._step_schedulers()
    assert agent._rates() == [3e-3] * 3
    assert KLAdaptiveRL is kl_adaptive is KLAdaptiveLR
    schedule = KLAdaptiveLR(kl_threshold=0.1, min_lr=1e-3, max_lr=1e-1, kl_factor=3, lr_factor=10)
    assert schedule(0) == 1.0
    assert schedule(0, lr=1e-2) == 1e-2
    assert [schedule(0, lr=1e-2, kl=each) for each in (0.31, 0.2, 0.03)] == pytest.approx([1e-3, 1e-2, 1e-1])
    assert schedule(0, lr=5e-3, kl=1.0) == 1e-3
    assert schedule(0, lr=5e-2, kl=0.0) == 1e-1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rate_scheduler": 3}, "learning_rate_scheduler=3 is not a function"),
        ({"learning_rate_scheduler": optax.constant_schedule}, "constant_schedule does not take"),
        ({"learning_rate_scheduler": lambda: 3}, "a scheduler must return a function of the step"),
        ({"learning_rate_scheduler_kwargs": {"optimizer": 1}}, "has optimizer, which the agent passes itself"),
        ({"learning_rate": (1e-3, 1e-3)}, "has 2 values; give one, or 3"),
    ],
)
def test_wrong_rates_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        small.make_agent(tmp_path, **settings)


def test_mixed_precision_is_not_a_setting_in_jax(tmp_path: Path) -> None:
    assert not hasattr(SAC_CFG(), "mixed_precision")
    with pytest.raises(KeyError, match="no configuration key 'mixed_precision'"):
        small.make_agent(tmp_path, mixed_precision=True)


def test_acting_first_at_random_then_by_the_policy(tmp_path: Path) -> None:
    agent = small.make_agent(tmp_path, random_timesteps=2)
    observations = jnp.zeros((64, 3))
    drawn, outputs = agent.act(observations, None, timestep=1, timesteps=9)
    assert outputs == {}
    assert np.unique(drawn).size == drawn.size
    assert 1.5 < np.abs(drawn).max() <= 2.0
    actions, outputs = agent.act(observations, None, timestep=2, timesteps=9)
    assert isinstance(actions, jax.Array)
    assert outputs["log_prob"].shape == (64, 1)
    assert outputs["mean_actions"].shape == actions.shape == (64, 2)
    again, _ = agent.act(observations, None, timestep=2, timesteps=9)
    assert not np.array_equal(actions, again)


def test_an_act_of_the_users_own_is_used_as_it_is(tmp_path: Path) -> None:
    class Counting(small.Policy):
        def __init__(self, **spaces: Any) -> None:
            super().__init__(**spaces)

        def act(self, inputs: Any, *, role: str = "", params: Any = None) -> Any:
            calls.append(role)
            return super().act(inputs, role=role, params=params)

    calls: list[str] = []
    models = small.make_models()
    own = Counting(observation_space=small.OBSERVATIONS, action_space=small.ACTIONS)
    own.init_state_dict({"observations": jnp.zeros((1, 3)), "states": None}, role="policy")
    agent = small.make_agent(tmp_path, models={**models, "policy": own})
    calls.clear()
    for _ in range(3):
        agent.act(jnp.zeros((1, 3)), None, timestep=0, timesteps=1)
    assert calls == ["policy"] * 3


def test_only_the_policy_is_needed_to_evaluate(tmp_path: Path) -> None:
    models = {"policy": small.make_models()["policy"]}
    agent = SAC(models=models, cfg={"experiment": {"directory": str(tmp_path)}})
    agent.init()
    actions, _ = agent.act(jnp.zeros((2, 3)), None, timestep=0, timesteps=1)
    assert actions.shape == (2, 2)
    with pytest.raises(UsageError, match="has no memory, which training needs"):
        agent.enable_training_mode(True)


class Scale:
    """A preprocessor of a user: multiplies, and remembers how it was called."""

    def __init__(self, factor: float) -> None:
        self.factor, self.calls = factor, list[Any]()

    def __call__(self, x: Any, train: bool = False) -> Any:
        self.calls.append((None if x is None else tuple(x.shape), train))
        return None if x is None else x * self.factor


def test_preprocessors_of_the_user_get_batches_in_turn(tmp_path: Path) -> None:
    settings = {"observation_preprocessor": Scale, "observation_preprocessor_kwargs": {"factor": 0.5}}
    settings |= {"state_preprocessor": Scale, "state_preprocessor_kwargs": {"factor": 0.0}, "gradient_steps": 2}
    agent = with_rows(small.make_agent(tmp_path, states=small.STATES, **settings), states=True)
    agent.update(**STEP)
    seen, states = agent._observation_preprocessor, agent._state_preprocessor
    assert seen.calls == [((8, 3), True)] * 4
    assert states.calls == [((8, 4), True)] * 4
    means = [
        agent.act(jnp.ones((1, 3)), jnp.full((1, 4), each), timestep=0, timesteps=1)[1]["mean_actions"]
        for each in (0.0, 9.0)
    ]
    assert np.array_equal(*means)  # states are multiplied by 0
    assert seen.calls[-1] == ((1, 3), False)


# Bad input.


def test_wrong_models_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    models = small.make_models()
    spaces = {"observation_space": small.OBSERVATIONS, "action_space": small.ACTIONS}
    blank = small.Critic(**spaces)
    wide = small.Policy(**{**spaces, "action_space": small.OBSERVATIONS})
    wide.init_state_dict({"observations": jnp.zeros((1, 3)), "states": None}, role="policy")
    double = jax.tree.map(lambda each: np.asarray(each, np.float64), models["critic_1"].state_dict.params)
    other = small.make_models()["critic_1"]
    other.state_dict = other.state_dict.replace(params=double)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"critic_2": None}, "models has no 'critic_2': training needs"),
        ({"policy": None}, "SAC needs policy"),
        ({"critic_1": object()}, r"models\['critic_1'\] is a object without act"),
        ({"critic_1": blank}, r"has no variables yet; call models\['critic_1'\].init_state_dict\(role='critic_1'\)"),
        ({"policy": wide}, r"models\['policy'\] gave \(2, 3\) for 2 rows; __call__ must return \(2, 2\)"),
        ({"policy": models["critic_1"]}, r"models\['policy'\] raised KeyError on two rows of zeros"),
        ({"critic_1": models["policy"]}, r"models\['critic_1'\] gave \(2, 2\) for 2 rows"),
        ({"target_critic_1": models["critic_1"]}, "'critic_1'. and models.'target_critic_1'. are one object"),
        ({"critic_1": other}, r"have the dtypes \['float32', 'float64'\]; use one for all"),
    ]
    for changed, words in cases:
        with pytest.raises(UsageError, match=words):
            small.make_agent(tmp_path, models={**models, **changed})
    with pytest.raises(UsageError, match="has no variables yet; call init_state_dict"):
        _ = Model().state_dict
