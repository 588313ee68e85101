"""Small PPO and APPO learners, and rollouts to learn from, for tests that compare them with what is written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from driven_learner import Learner
from offbeat.algorithms.torch import appo
from offbeat.settings import make_learner_config
from offbeat.types import EnvSpec, Layout, Leaf, RolloutBatch
from specs import choice_spec, vector_spec

BOX, CHOICE, STATE = vector_spec(5, 2), choice_spec(5, 3), vector_spec(5, 2, state=3)
BRANCHES = EnvSpec(
    "test", Layout((Leaf((), "box", (5,), "float32"),)), (0.0,) * 3, (2.0, 1.0, 4.0), (3,), "int64", branches=(3, 2, 5)
)
MOST = 1 << 30
"""More updates than a turn has."""


def make(
    algorithm: str = "ppo", spec: EnvSpec = BOX, precision: str = "float64", seed: int = 1, **settings: Any
) -> Learner:
    config = make_learner_config(algorithm, **{"hidden": (16, 16), "minibatches": 4, "epochs": 2, **settings})
    return Learner(algorithm, config, spec, rng=np.random.default_rng(seed), precision=precision)


def moved(learner: Learner, size: float = 0.1, seed: int = 3) -> Learner:
    """The learner with other weights than the first, whose outputs are nearly the same for all observations."""
    generator = torch.Generator().manual_seed(seed)
    for network in (learner.state.actor, learner.state.critic, learner.state.target):
        if network is not None:
            network.flat += size * torch.randn(network.flat.shape, generator=generator, dtype=network.flat.dtype)
    return learner


def log_probs(learner: Learner, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Of actions (..., A), under the learner's policy as it is."""
    policy, rows = learner.state.actor, torch.from_numpy(obs.reshape(-1, obs.shape[-1])).to(learner.dtype)
    actions = torch.from_numpy(action.reshape(len(rows), -1)).to(learner.dtype)
    with torch.inference_mode():
        found = appo.head(learner.config, learner.spec)(policy(rows), appo.log_std(policy), actions)[0]
    return found.double().numpy().reshape(action.shape[:-1])


def rollout(
    learner: Learner,
    steps: int = 12,
    envs: int = 3,
    *,
    seed: int = 0,
    ends: float = 0.15,
    gaps: float = 0.0,
    breaks: float = 0.0,
    older: float = 0.0,
) -> RolloutBatch:
    """Random steps in float64. Each row's next_obs is the next row's obs only where an episode goes on there.

    ends: the chance that a row ends an episode, in one way or both. gaps: that a call gave no row, which is zeros then.
    breaks: that an episode ends without a flag. older: how far the log-probabilities are from those of the learner.
    """
    rng, spec = np.random.default_rng(seed), learner.spec
    terminated, truncated = (rng.random((steps, envs)) < ends for _ in range(2))
    valid, broken = rng.random((steps, envs)) >= gaps, rng.random((steps, envs)) < breaks
    over = terminated | truncated | broken
    episode = np.cumsum(np.vstack((np.zeros((1, envs), bool), over[:-1])), 0)
    goes_on = (~over[:-1] & valid[:-1] & valid[1:])[..., None]
    columns: dict[str, np.ndarray] = {}
    for name, size in (("obs", spec.observation_size), ("state", spec.state_size)):
        here, there = rng.standard_normal((2, steps, envs, size))
        there[:-1] = np.where(goes_on, here[1:], there[:-1])
        columns |= {name: here, f"next_{name}": there}
    if spec.choices is None and not spec.branches:
        action = np.tanh(0.8 * rng.standard_normal((steps, envs, spec.action_size)))
    else:
        action = spec.random_actions(rng, steps * envs).reshape(steps, envs, -1).astype(np.float64)
    log_prob = log_probs(learner, columns["obs"], action) + older * rng.standard_normal((steps, envs))
    columns |= {
        "action": action,
        "reward": 2.0 * rng.standard_normal((steps, envs)),
        "log_prob": log_prob,
        "terminated": terminated,
        "truncated": truncated,
        "version": np.zeros((steps, envs), np.int32),
        "env": np.broadcast_to(np.arange(envs), (steps, envs)).copy(),
        "episode": episode,
        "step": np.zeros((steps, envs), np.int32),
    }
    for column in columns.values():
        column[~valid] = 0
    return RolloutBatch(columns, valid)


def prepared(learner: Learner, experience: RolloutBatch) -> appo.Minibatch:
    """All rows that a turn would learn from, as one batch, in the order (T, N)."""
    with torch.inference_mode():
        rows = appo.prepare(learner.state, learner.config, learner.spec, learner.steps_of(experience))
        (whole,) = rows.minibatches(torch.arange(len(rows)), 1)
    return whole


def turn(learner: Learner, experience: RolloutBatch, count: int = MOST, seed: int = 5) -> int:
    return learner.learn_rollout(experience, np.random.default_rng(seed), count)
