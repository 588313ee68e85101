"""A mistake is refused before anything is made: one sentence with the argument, the rule and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from torch import nn

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.errors import SpaceError, UsageError


def models_with(**changes: Any) -> dict[str, Any]:
    """The five models; None leaves one out."""
    models = {**small.make_models(), **changes}
    return {name: model for name, model in models.items() if model is not None}


def with_output(width: int, mixin: Any = skrl.DeterministicMixin) -> Any:
    class Own(mixin, skrl.Model):
        def __init__(self) -> None:
            skrl.Model.__init__(self, observation_space=small.OBSERVATIONS, action_space=small.ACTIONS, device="cpu")
            mixin.__init__(self)
            self.net = nn.Linear(3, width)

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {"log_std": torch.zeros(width)}

    return Own()


class WithoutCompute(skrl.GaussianMixin, skrl.Model):
    def __init__(self) -> None:
        skrl.Model.__init__(self, observation_space=small.OBSERVATIONS, action_space=small.ACTIONS, device="cpu")
        skrl.GaussianMixin.__init__(self)
        self.net = nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": None}, "SAC needs policy: add"),
        ({"critic_2": None}, "models has no 'critic_2': training needs policy, critic_1"),
        ({"target_critic_1": None}, "models has no 'target_critic_1'"),
        ({"policy": WithoutCompute()}, r"models\['policy'\] \(WithoutCompute\) has no method compute"),
        ({"critic_1": nn.Linear(3, 1)}, r"models\['critic_1'\] is a Linear without act"),
        ({"policy": with_output(5, skrl.GaussianMixin)}, r"models\['policy'\] gave \(2, 5\) .* return \(2, 2\)"),
        ({"policy": with_output(2)}, "gives no log_prob .* use GaussianMixin"),
        ({"critic_1": with_output(3)}, r"models\['critic_1'\] gave \(2, 3\) .* return \(2, 1\)"),
        ({"target_critic_2": with_output(1)}, r"'target_critic_2'\] differs in its layers"),
    ],
)
def test_a_model_that_is_wrong(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    models = models_with(**changes)
    with pytest.raises(UsageError, match=message):
        small.make_agent(tmp_path, models=models)
    assert list(tmp_path.iterdir()) == []


def test_models_that_share_or_mix(tmp_path: Path) -> None:
    models = small.make_models()
    with pytest.raises(UsageError, match=r"share the parameter|are one object"):
        small.make_agent(tmp_path, models={**models, "critic_2": models["critic_1"]})
    with pytest.raises(UsageError, match=r"share the parameter|are one object"):
        small.make_agent(tmp_path, models={**models, "target_critic_1": models["critic_1"]})
    models["policy"].double()
    with pytest.raises(UsageError, match=r"have the dtypes .* use one for all"):
        small.make_agent(tmp_path, models=models)
    with pytest.raises(UsageError, match="must be a dictionary with the key policy"):
        skrl.SAC(models=[], observation_space=small.OBSERVATIONS, action_space=small.ACTIONS)  # type: ignore[arg-type]


def test_a_model_that_raises(tmp_path: Path) -> None:
    policy = small.make_models()["policy"]
    policy.net = nn.Linear(7, 2)
    with pytest.raises(
        UsageError, match=r"models\['policy'\] raised RuntimeError on two rows of zeros \(observations 3"
    ):
        small.make_agent(tmp_path, models=models_with(policy=policy))


def test_spaces_that_are_missing_or_not_supported() -> None:
    models = small.make_models()
    models["policy"].observation_space = None
    with pytest.raises(UsageError, match=r"observation_space is None.* pass observation_space=env\.observation_space"):
        skrl.SAC(models=models, action_space=small.ACTIONS)
    with pytest.raises(SpaceError, match=r"action_space=Discrete\(3\): SAC takes Box actions"):
        skrl.SAC(models=models, observation_space=small.OBSERVATIONS, action_space=gym.spaces.Discrete(3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount_factor": 1.5}, "discount_factor=1.5 is out of range: it must be from 0 to 1"),
        ({"polyak": -0.1}, "polyak=-0.1 is out of range"),
        ({"batch_size": 0}, "batch_size=0 must be an integer of at least 1"),
        ({"gradient_steps": 1.5}, "gradient_steps=1.5 must be an integer"),
        ({"random_timesteps": -1}, "random_timesteps=-1 must be an integer of at least 0"),
        ({"learning_starts": -1}, "learning_starts=-1 must be an integer of at least 0"),
        ({"initial_entropy_value": 0.0}, "initial_entropy_value=0.0 must be above 0"),
        ({"learning_rate": (1e-3, 1e-3)}, "has 2 values; give one, or 3: policy, critics, entropy"),
        ({"rewards_shaper": 3}, "rewards_shaper=3 must be a function"),
        ({"learning_rate_scheduler": 3}, "learning_rate_scheduler=3 is not a class"),
        (
            {"learning_rate_scheduler": torch.optim.lr_scheduler.StepLR},
            "StepLR does not take learning_rate_scheduler_kwargs={}",
        ),
        ({"learning_rate_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau}, "needs a metric in each step"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        small.make_agent(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_of_the_wrong_size(tmp_path: Path) -> None:
    env = skrl.wrap_env(SyncVectorEnv([small.Still] * 4), verbose=False)
    for envs in (3, 6):
        agent = small.make_agent(tmp_path, skrl.RandomMemory(memory_size=8, num_envs=envs), init=False)
        with pytest.raises(UsageError, match=rf"num_envs={envs}, but its agent steps 4 environments; .* num_envs=4"):
            skrl.SequentialTrainer(env=env, agents=agent)
    assert list(tmp_path.iterdir()) == []


def test_an_update_without_rows(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the memory is empty"):
        small.make_agent(tmp_path).update(timestep=0, timesteps=1)


def test_a_memory_of_the_user_that_gives_too_little(tmp_path: Path) -> None:
    class Own(skrl.Memory):
        def sample(self, names: list[str], **options: Any) -> list[list[Any]]:
            return [[None if name == "rewards" else torch.zeros(4, 3) for name in names]]

    with pytest.raises(UsageError, match="sample gave nothing for 'rewards'"):
        small.make_agent(tmp_path, Own(memory_size=4)).update(timestep=0, timesteps=1)


def test_several_learners_cannot_resume_the_memory_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skrl.config.torch, "world_size", 2)
    monkeypatch.setenv("OFFBEAT_RESUME", str(tmp_path))
    with pytest.raises(UsageError, match="WORLD_SIZE=2: OFFBEAT_RESUME holds the memory of one learner"):
        small.make_agent(tmp_path)


def test_a_device_that_is_not_there_gives_the_default_one(caplog: Any) -> None:
    skrl.logger.propagate = True
    try:
        assert skrl.Model(device="tpu:3").device == skrl.config.torch.device
    finally:
        skrl.logger.propagate = False
    assert "device='tpu:3' cannot be used" in caplog.text
