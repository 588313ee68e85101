"""Every off-policy algorithm, and one of a user's own, learns the values of the probe environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from backends import backends_of, output_of
from probes import Probe

SHARED: dict[str, Any] = {"hidden": (32, 32), "tau": 0.05, "target_every": 1, "batch_size": 64, "gamma": 0.5}
RATES: dict[str, Any] = {"actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3}
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {**SHARED, **RATES, "temperature": {"kind": "fixed", "value": 0.0}},
    "td3": {**SHARED, **RATES, "target_noise": 0.0, "exploration": {"kind": "gaussian", "scale": 0.5}},
    "ddpg": {**SHARED, **RATES, "exploration": {"kind": "ornstein_uhlenbeck", "scale": 2.0}},
    "dqn": {**SHARED, "learning_rate": 3e-3, "exploration": {"kind": "epsilon_greedy", "final": 1.0}},
    "redq": {**SHARED, **RATES, "temperature": {"kind": "fixed", "value": 0.0}, "critics": 4, "actor_every": 1},
    "discrete sac": {**SHARED, **RATES, "temperature": {"kind": "fixed", "value": 0.02}},
    "own_parts.expectile:ALGORITHM": {
        **{name: value for name, value in (SHARED | RATES).items() if name != "target_every"},
        "exploration": {"kind": "gaussian", "scale": 0.5},
    },
}
# Parts of a user's own with an algorithm of ours, or with one of the user's.
OWN: dict[str, Any] = {"replay": "own_parts.replay:Prioritised", "preprocessor": "own_parts.preprocessor:LargestScale"}
SETTINGS["td3 with own parts"] = {**SETTINGS["td3"], **OWN, "exploration": "own_parts.exploration:PinkNoise"}
SETTINGS["dqn with own replay"] = {**SETTINGS["dqn"], **OWN}
SETTINGS["sac with recent rows"] = {**SETTINGS["sac"], "replay": "own_parts.recent:Recent"}
DISCRETE = {"dqn", "discrete sac", "dqn with own replay"}
JAX = ("sac", "td3", "dqn", "discrete sac", "own_parts.expectile:ALGORITHM")
"""Every loss once; those of the others are the same with other settings."""
DEFAULT = ("sac", "td3", "dqn")
"""The default tests have these on torch, and one on JAX, where each is compiled. Of the others they have
`test_two_step_returns_give_the_same_values`."""


def _algorithm(case: str) -> str:
    return "sac" if case == "discrete sac" else case.split()[0]


def _cases() -> list[Any]:
    return [
        pytest.param(
            case,
            backend,
            id=f"{case}-{backend}",
            marks=[pytest.mark.slow] * (case not in (DEFAULT if backend == "torch" else ("sac",))),
        )
        for case in sorted(SETTINGS)
        for backend in backends_of(_algorithm(case), "discrete" if case in DISCRETE else "box")
        if backend == "torch" or case in JAX
    ]


algorithms = pytest.mark.parametrize(("algorithm", "backend"), _cases())


def _train(algorithm: str, backend: str, updates: int = 800, n_step: int = 1, **probe: Any) -> offbeat.Agent:
    torch.set_num_threads(1)
    env = Probe(**probe, discrete=algorithm in DISCRETE)
    agent = offbeat.Agent(
        _algorithm(algorithm),
        env,
        backend=backend,
        random_steps=300,
        n_step=n_step,
        **SETTINGS[algorithm],
    )
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
    seen = agent.learner.observations
    obs = obs if seen is None else float(seen(np.float32([obs]))[0])
    row, nothing = np.array([[obs]]), np.zeros((1, 0))
    if agent.spec.choices is not None:
        parts = [row] + [nothing] * (agent.config.algorithm == "sac")
        return output_of(agent, "critic", *parts)[..., round(2 * action + 2)].flatten()
    return output_of(agent, "critic", row, nothing, np.array([[action]]))[:, 0]


def _acts(agent: offbeat.Agent) -> float:
    action = agent.act(np.zeros(1, np.float32), deterministic=True)
    return float(action) / 2 - 1 if agent.spec.choices is not None else float(action[0])


@algorithms
def test_q_of_the_first_of_two_steps_is_discounted_once(algorithm: str, backend: str) -> None:
    agent = _train(algorithm, backend, length=2, reward="end")
    np.testing.assert_allclose(_q(agent, 1.0, 0.0), 1.0, atol=0.05)
    np.testing.assert_allclose(_q(agent, 0.0, 0.0), 0.5, atol=0.05)


@pytest.mark.parametrize("algorithm", sorted(SETTINGS))
def test_two_step_returns_give_the_same_values(algorithm: str) -> None:
    agent = _train(algorithm, "torch", n_step=2, length=2, reward="end")
    np.testing.assert_allclose(_q(agent, 1.0, 0.0), 1.0, atol=0.05)
    np.testing.assert_allclose(_q(agent, 0.0, 0.0), 0.5, atol=0.05)


@algorithms
def test_q_and_policy_follow_a_reward_that_depends_on_the_action(algorithm: str, backend: str) -> None:
    agent = _train(algorithm, backend, updates=1_500, length=1, reward="action")
    for action in (-1.0, 0.0, 0.5, 1.0):
        np.testing.assert_allclose(_q(agent, 0.0, action), -((action - 0.5) ** 2), atol=0.1)
    assert _acts(agent) == pytest.approx(0.5, abs=0.12)


@algorithms
def test_truncation_bootstraps_but_termination_does_not(algorithm: str, backend: str) -> None:
    endless = _train(algorithm, backend, length=1, reward="every", ending="truncated")
    np.testing.assert_allclose(_q(endless, 0.0, 0.0), 1.0 / (1.0 - 0.5), atol=0.1)
    ended = _train(algorithm, backend, length=1, reward="every", ending="terminated")
    np.testing.assert_allclose(_q(ended, 0.0, 0.3), 1.0, atol=0.05)
