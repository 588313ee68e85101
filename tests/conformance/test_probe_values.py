"""Every off-policy algorithm learns the values of the probe environments, driven by a loop of our own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from probes import Probe

SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {
        "temperature": {"kind": "fixed", "value": 0.0},
        "actor_learning_rate": 3e-3,
        "critic_learning_rate": 3e-3,
        "hidden": (32, 32),
        "tau": 0.05,
        "batch_size": 64,
        "gamma": 0.5,
    }
}
algorithms = pytest.mark.parametrize("algorithm", sorted(SETTINGS))


def _train(algorithm: str, env: Probe, updates: int = 800, **settings: Any) -> offbeat.Agent:
    torch.set_num_threads(1)
    agent = offbeat.Agent(algorithm, env, random_steps=300, **{**SETTINGS[algorithm], **settings})
    obs, _ = env.reset(seed=0)
    for step in range(200 + updates):
        action = agent.act(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        agent.observe(obs, action, reward, next_obs, terminated, truncated)
        obs = env.reset()[0] if terminated or truncated else next_obs
        if step >= 200:
            agent.update(1)
    return agent


def _q(agent: offbeat.Agent, obs: float, action: float) -> np.ndarray:
    """(E,) values of one observation and action."""
    with torch.no_grad():
        inputs = [torch.tensor([[obs]]), torch.zeros(1, 0), torch.tensor([[action]])]
        return agent.learner.state.critic(*inputs)[:, 0].numpy()


@algorithms
def test_q_equals_one_when_every_episode_pays_one_and_ends(algorithm: str) -> None:
    agent = _train(algorithm, Probe(length=1, reward="end"))
    np.testing.assert_allclose(_q(agent, 0.0, 0.3), 1.0, atol=0.05)


@algorithms
def test_q_of_the_first_of_two_steps_is_discounted_once(algorithm: str) -> None:
    agent = _train(algorithm, Probe(length=2, reward="end"))
    np.testing.assert_allclose(_q(agent, 1.0, 0.0), 1.0, atol=0.05)
    np.testing.assert_allclose(_q(agent, 0.0, 0.0), 0.5, atol=0.05)


@algorithms
def test_two_step_returns_give_the_same_values(algorithm: str) -> None:
    agent = _train(algorithm, Probe(length=2, reward="end"), n_step=2)
    np.testing.assert_allclose(_q(agent, 1.0, 0.0), 1.0, atol=0.05)
    np.testing.assert_allclose(_q(agent, 0.0, 0.0), 0.5, atol=0.05)


@algorithms
def test_q_and_policy_follow_a_reward_that_depends_on_the_action(algorithm: str) -> None:
    agent = _train(algorithm, Probe(length=1, reward="action"), updates=1_500)
    for action in (-0.8, 0.0, 0.5, 0.9):
        np.testing.assert_allclose(_q(agent, 0.0, action), -((action - 0.5) ** 2), atol=0.1)
    assert agent.act(np.zeros(1, np.float32), deterministic=True)[0] == pytest.approx(0.5, abs=0.12)


@algorithms
def test_truncation_bootstraps_but_termination_does_not(algorithm: str) -> None:
    endless = _train(algorithm, Probe(length=1, reward="every", ending="truncated"))
    np.testing.assert_allclose(_q(endless, 0.0, 0.0), 1.0 / (1.0 - 0.5), atol=0.1)
    ended = _train(algorithm, Probe(length=1, reward="every", ending="terminated"))
    np.testing.assert_allclose(_q(ended, 0.0, 0.0), 1.0, atol=0.05)
