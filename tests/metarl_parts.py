"""Parts of metarl-style scripts for tests: small environments; policies, buffers and algorithms that keep records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from offbeat.compat.metarl import (
    DDPG,
    DQN,
    ContinuousMLPQFunction,
    DeterministicMLPPolicy,
    DiscreteMLPQFunction,
    DiscreteQfDerivedPolicy,
    LocalRunner,
    MetaRLEnv,
    OffPolicyRLAlgorithm,
    PathBuffer,
    SnapshotConfig,
)


class Line(gymnasium.Env[Any, Any]):
    """Action 1 goes one step to the right, 0 stays. The reward is the position; at `goal` the episode terminates."""

    def __init__(self, goal: int = 4) -> None:
        self.observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.goal, self.position = goal, 0

    def _observation(self) -> Any:
        return np.array([self.position, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += int(action)
        there = self.position == self.goal
        return self._observation(), float(self.position), there, False, {"is_success": there, "position": self.position}


class Reach(gymnasium.Env[Any, Any]):
    """Actions in [-2, 2]; the reward is -(action - 1)^2. The observation is random, and the fifth step terminates."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def _draw(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._draw(), -float((action[0] - 1.0) ** 2), self.steps == 5, False, {}


class Always:
    """A policy that always takes one action, and keeps a record of `reset`."""

    def __init__(self, action: Any = 1) -> None:
        self.action, self.calls, self.resets = action, 0, list[Any]()

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        self.calls += len(observations)
        return np.stack([np.asarray(self.action)] * len(observations)), {}

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.get_actions([observation])[0][0], {}

    def reset(self, dones: Any = None) -> None:
        self.resets.append(None if dones is None else np.asarray(dones).tolist())


class ListBuffer:
    """A replay buffer of the user's own: lists, and NumPy's global generator."""

    def __init__(self) -> None:
        self.paths: list[dict[str, Any]] = []
        self.sizes: list[int] = []

    def add_path(self, path: dict[str, Any]) -> None:
        self.paths.append(path)

    def rows(self, key: str) -> Any:
        return np.concatenate([path[key] for path in self.paths])

    @property
    def n_transitions_stored(self) -> int:
        return sum(len(path["rewards"]) for path in self.paths)

    def sample_transitions(self, batch_size: int) -> dict[str, Any]:
        self.sizes.append(batch_size)
        chosen = np.random.randint(self.n_transitions_stored, size=batch_size)  # noqa: NPY002
        return {key: self.rows(key)[chosen] for key in self.paths[0]}


class Recording(OffPolicyRLAlgorithm):
    """Learns nothing and keeps what it was given."""

    returns: Any = None

    def init_opt(self) -> None:
        self.calls: list[tuple[int, list[dict[str, Any]]]] = []

    def train_once(self, itr: int, paths: list[dict[str, Any]]) -> Any:
        self.calls.append((itr, paths))
        return self.returns


SMALL: dict[str, Any] = {
    "steps_per_epoch": 2,
    "min_buffer_size": 10,
    "n_train_steps": 3,
    "buffer_batch_size": 4,
    "max_path_length": 10,
}


def recording(**changes: Any) -> Recording:
    env = MetaRLEnv(changes.pop("env", None) or Line())
    policy = changes.pop("policy", None) or Always()
    arguments = {"steps_per_epoch": 2, "min_buffer_size": 1, **changes}
    buffer = arguments.pop("replay_buffer", None) or ListBuffer()
    return Recording(env.spec, policy, None, buffer, **arguments)


def small_dqn(**changes: Any) -> DQN:
    torch.manual_seed(1)  # of a few ReLU units all may be dead
    env = MetaRLEnv(Line())
    qf = changes.pop("qf", None) or DiscreteMLPQFunction(env.spec, hidden_sizes=(8,))
    policy = DiscreteQfDerivedPolicy(env.spec, qf)
    settings = {**SMALL, **changes}
    buffer = settings.pop("replay_buffer", None) or PathBuffer(100)
    return DQN(env.spec, policy, qf, buffer, **settings)


def small_ddpg(**changes: Any) -> DDPG:
    torch.manual_seed(1)
    env = MetaRLEnv(Reach())
    policy = DeterministicMLPPolicy(env.spec, hidden_sizes=(8,), output_nonlinearity=torch.tanh)
    qf = ContinuousMLPQFunction(env.spec, hidden_sizes=(8,))
    settings = {**SMALL, **changes}
    buffer = settings.pop("replay_buffer", None) or PathBuffer(100)
    return DDPG(env.spec, policy, qf, buffer, **settings)


def runner_in(path: Path, algo: Any, env: Any = None, mode: str = "last", gap: int = 1, **options: Any) -> LocalRunner:
    runner = LocalRunner(SnapshotConfig(str(path), mode, gap))
    runner.setup(algo, MetaRLEnv(Line()) if env is None else env, **options)
    return runner


def states(algo: Any) -> Any:
    """The state of the algorithm's learner: networks and optimisers."""
    return algo._training.learner.backend.state


def updates(algo: Any) -> int:
    return int(algo._training.learner.updates)


def transitions(seed: int, count: int, observation: int, action: int, discrete: bool) -> dict[str, Any]:
    """Random transitions as a replay buffer gives them."""
    rng = np.random.default_rng(seed)
    actions = np.eye(action)[rng.integers(action, size=count)] if discrete else rng.uniform(-2, 2, (count, action))
    return {
        "observations": rng.standard_normal((count, observation)).astype(np.float32),
        "next_observations": rng.standard_normal((count, observation)).astype(np.float32),
        "actions": actions.astype(np.float32),
        "rewards": rng.standard_normal((count, 1)).astype(np.float32),
        "terminals": rng.random((count, 1)) < 0.3,
    }
