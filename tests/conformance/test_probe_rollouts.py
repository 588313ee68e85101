"""PPO and APPO learn the values and policies of the probe environments, driven by a loop of our own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete

import offbeat
from backends import backends_of, output_of
from probes import Probe

SHARED: dict[str, Any] = {
    **{"hidden": (32, 32), "learning_rate": 3e-3, "gamma": 0.5, "minibatches": 4, "max_grad_norm": None},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {**SHARED, "rollout_steps": 64, "epochs": 4},
    "appo": {**SHARED, "rollout_steps": 64, "epochs": 4},
    "appo with a target": {**SHARED, "rollout_steps": 64, "epochs": 2, "target_every": 4, "sample_reuse": 2},
    # Where there is one state alone, its deviation falls too fast with the advantages of ever smaller differences.
    "ppo squashed": {**SHARED, "rollout_steps": 64, "epochs": 4, "squash": True, "learning_rate": 1e-3}
    | {"state_dependent_std": True, "normalise_advantages": False},
    "ppo discrete": {**SHARED, "rollout_steps": 64, "epochs": 4, "entropy_coefficient": 0.01},
    # A user's own preprocessor and schedule.
    "ppo with own parts": {**SHARED, "rollout_steps": 64, "epochs": 4, "total_steps": 20_000}
    | {"preprocessor": "own_parts.preprocessor:LargestScale"}
    | {"schedule": "own_parts.schedules:InverseRoot", "schedule_kwargs": {"constant": 50}},
    "appo discrete": {**SHARED, "rollout_steps": 64, "epochs": 4, "entropy_coefficient": 0.01},
}
JAX = ("ppo", "appo with a target", "ppo squashed", "appo discrete")
"""Every loss and policy once."""
DEFAULT = ("ppo", "appo with a target", "ppo squashed", "ppo discrete")
"""The same on torch, for the default tests. Of the others they have the first test alone."""
COMPILED = "appo with a target"
"""The default tests have one case on JAX, because each is compiled."""


def _slow(case: str, backend: str, everything: bool = False) -> list[Any]:
    default = case == COMPILED if backend == "jax" else everything or case in DEFAULT
    return [] if default else [pytest.mark.slow]


def _cases(everything: bool) -> Any:
    return pytest.mark.parametrize(
        ("algorithm", "backend"),
        [
            pytest.param(case, backend, id=f"{case}-{backend}", marks=_slow(case, backend, everything))
            for case in SETTINGS
            for backend in backends_of(case.split()[0], "discrete" if "discrete" in case else "box")
            if backend == "torch" or case in JAX
        ],
    )


algorithms, every_algorithm = _cases(False), _cases(True)
ENVS = 4


def _train(algorithm: str, backend: str, make: Any, rollouts: int = 20, **settings: Any) -> offbeat.Agent:
    torch.set_num_threads(1)
    envs = [make() for _ in range(ENVS)]
    agent = offbeat.Agent(algorithm.split()[0], envs[0], backend=backend, **{**SETTINGS[algorithm], **settings})
    obs = np.stack([env.reset(seed=number)[0] for number, env in enumerate(envs)])
    for _ in range(rollouts * agent.config.learner.rollouts.rollout_steps):
        action = agent.act(obs)
        moved = [env.step(each) for env, each in zip(envs, action, strict=True)]
        after, reward, terminated, truncated, _ = (list(column) for column in zip(*moved, strict=True))
        agent.observe(obs, action, reward, np.stack(after), terminated, truncated)
        ended = [one or other for one, other in zip(terminated, truncated, strict=True)]
        obs = np.stack([env.reset()[0] if over else seen for env, seen, over in zip(envs, after, ended, strict=True)])
        agent.update()
    return agent


def _probe(algorithm: str, **probe: Any) -> Any:
    return lambda: Probe(**probe, discrete="discrete" in algorithm)


def _value(agent: offbeat.Agent, obs: float) -> float:
    seen = agent.learner.observations
    obs = obs if seen is None else float(seen(np.float32([obs]))[0])
    return float(output_of(agent, "critic", np.array([[obs]]), np.zeros((1, 0)))[0, 0])


def _acts(agent: offbeat.Agent) -> float:
    action = agent.act(np.zeros(1, np.float32), deterministic=True)
    return float(action) / 2 - 1 if agent.spec.choices is not None else float(action[0])


@every_algorithm
def test_the_value_of_the_first_of_two_steps_is_discounted_once(algorithm: str, backend: str) -> None:
    agent = _train(algorithm, backend, _probe(algorithm, length=2, reward="end"))
    assert _value(agent, 1.0) == pytest.approx(1.0, abs=0.05)
    assert _value(agent, 0.0) == pytest.approx(0.5, abs=0.05)


@algorithms
def test_truncation_bootstraps_but_termination_does_not(algorithm: str, backend: str) -> None:
    endless = _train(algorithm, backend, _probe(algorithm, length=1, reward="every", ending="truncated"))
    assert _value(endless, 0.0) == pytest.approx(1.0 / (1.0 - 0.5), abs=0.1)
    ended = _train(algorithm, backend, _probe(algorithm, length=1, reward="every", ending="terminated"))
    assert _value(ended, 0.0) == pytest.approx(1.0, abs=0.05)


@algorithms
def test_the_end_of_a_rollout_is_not_the_end_of_an_episode(algorithm: str, backend: str) -> None:
    """An episode that never ends pays 1 in each step: every rollout is cut off and goes on."""
    agent = _train(algorithm, backend, _probe(algorithm, length=10**9, reward="every", ending="truncated"))
    assert _value(agent, 0.0) == pytest.approx(1.0 / (1.0 - 0.5), abs=0.1)


@algorithms
def test_the_policy_follows_a_reward_that_depends_on_the_action(algorithm: str, backend: str) -> None:
    agent = _train(algorithm, backend, _probe(algorithm, length=1, reward="action"), rollouts=40)
    assert _acts(agent) == pytest.approx(0.5, abs=0.12)
    reward = np.mean([-((_drawn(agent) - 0.5) ** 2) for _ in range(200)])
    assert reward > -0.25  # what uniform actions get is -0.58, the first policy -0.75
    assert _value(agent, 0.0) == pytest.approx(reward, abs=0.1)


def _drawn(agent: offbeat.Agent) -> float:
    action = agent.act(np.zeros(1, np.float32))
    return float(action) / 2 - 1 if agent.spec.choices is not None else float(action[0])


class Match(gymnasium.Env[Any, Any]):
    """One step: each part of the action that equals `wanted` pays 1."""

    def __init__(self, space: gymnasium.Space[Any], wanted: tuple[int, ...]) -> None:
        self.observation_space, self.action_space = Box(-1.0, 1.0, (1,), np.float32), space
        self._wanted = np.array(wanted)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), float((action == self._wanted).sum()), True, False, {}


@pytest.mark.parametrize(
    ("algorithm", "backend"),
    [
        pytest.param(each, backend, marks=_slow(each, backend))
        for each in ("ppo", "appo")
        for backend in backends_of(each, "multidiscrete")
    ],
)
@pytest.mark.parametrize(
    ("space", "wanted"),
    [(MultiDiscrete([2, 4, 3]), (1, 3, 0)), (MultiBinary(3), (1, 0, 1))],
    ids=["discrete", "binary"],
)
def test_several_choices_at_once_are_learned_each_by_itself(
    algorithm: str, backend: str, space: Any, wanted: tuple[int, ...]
) -> None:
    agent = _train(algorithm, backend, lambda: Match(space, wanted), rollouts=25)
    assert tuple(agent.act(np.zeros(1, np.float32), deterministic=True)) == wanted
    assert _value(agent, 0.0) > 2.4  # of 3; a uniform policy gets less than 1.6
