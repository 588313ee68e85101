"""Wrapped environments, and `set_seed`."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import skrl_agents as small
from offbeat.compat import skrl
from offbeat.errors import OffbeatError, SpaceError, UsageError
from skrl_agents import still


def test_wrapped_spaces_and_attributes() -> None:
    env = still(3)
    assert (env.num_envs, env.num_agents, env.device) == (3, 1, torch.device("cpu"))
    assert env.observation_space == small.OBSERVATIONS
    assert env.action_space == small.ACTIONS
    assert env.state() is None
    assert env.reset()[0].shape == (3, 3)
    assert skrl.wrap_env(env) is env
    assert still().spec is None  # an attribute of the environment
    with pytest.raises(AttributeError, match="'missing'"):
        _ = env.missing


def test_the_choice_of_a_wrapper_is_logged_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(skrl.logger, "info", messages.append)
    still()
    assert messages == []
    for wrapper in ("auto", "gymnasium"):
        assert skrl.wrap_env(small.Still(), wrapper).num_envs == 1
    assert messages == ["Environment wrapper: Gymnasium"] * 2


def test_dict_observations_are_flat_in_the_order_of_their_keys() -> None:
    class Two(small.Still):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Dict(
                {"b": gym.spaces.Box(-9, 9, (1,)), "a": gym.spaces.Box(0, 255, (2, 2), np.uint8)}
            )

        def _observation(self) -> Any:
            return {"b": np.full(1, -self._now, np.float32), "a": np.full((2, 2), self._now + 1, np.uint8)}

    env = skrl.wrap_env(Two(), verbose=False)
    assert env.reset()[0].tolist() == [[1.0, 1.0, 1.0, 1.0, 0.0]]
    assert env.step(torch.zeros(1, 2))[0].tolist() == [[2.0, 2.0, 2.0, 2.0, -1.0]]


def test_episodes_follow_from_the_seed() -> None:
    def first_angles() -> list[Any]:
        skrl.set_seed(7)
        env = skrl.wrap_env(gym.make("Pendulum-v1"), verbose=False)
        return [env.reset()[0].tolist() for _ in range(2)]

    one = first_angles()
    assert one == first_angles()
    assert one[0] != one[1]


def test_a_reset_in_the_middle_begins_another_episode() -> None:
    env = still()
    env.reset()
    env.step(torch.zeros(1, 2))
    assert env.reset()[0].tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("env", "options", "error", "message"),
    [
        ("Pendulum-v1", {"wrapper": "isaaclab"}, UsageError, "wrapper='isaaclab' is not there yet"),
        ("Pendulum-v1", {"wrapper": "gymnasiun"}, UsageError, "wrapper='gymnasiun' is unknown"),
        ("CartPole-v1", {}, SpaceError, "the action space is Discrete"),
        (None, {}, UsageError, "str is no Gymnasium environment"),
    ],
)
def test_environments_that_are_refused(env: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        skrl.wrap_env("Pendulum-v1" if env is None else gym.make(env), **options)


@pytest.mark.parametrize("count", [None, 2])
def test_an_action_that_is_not_finite_is_refused_with_the_names_of_skrls_settings(count: int | None) -> None:
    env = still(count)
    env.reset()
    actions = torch.zeros(count or 1, 2)
    actions[-1] = float("nan")
    message = f"environment {(count or 1) - 1} is .* must be finite; .* lower learning_rate, or set grad_norm_clip"
    with pytest.raises(OffbeatError, match=message):
        env.step(actions)


def test_set_seed_seeds_everything_and_draws_one_if_none_is_given() -> None:
    drawn = []
    for _ in range(2):
        assert skrl.set_seed(5) == 5
        drawn.append((random.random(), np.random.random(), float(torch.rand(()))))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    assert skrl.config.torch.key == 5
    assert skrl.set_seed() != skrl.set_seed()
    try:
        skrl.set_seed(1, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        skrl.set_seed(1)
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(UsageError, match="out of range"):
        skrl.set_seed(-1)
