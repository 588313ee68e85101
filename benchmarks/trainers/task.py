"""The task and the evaluation of every trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WARMUP_STEPS = 1_000  # uniform random actions, no updates
BATCH = 256
HIDDEN = (256, 256)
LEARNING_RATE = 3e-4  # set explicitly, because the defaults of the libraries differ


def episode_returns(environment: str, act: Callable[[Any], Any], episodes: int = 10) -> list[float]:
    """The returns of `episodes` episodes, with the same initial states for every library."""
    import gymnasium

    env = gymnasium.make(environment)
    returns = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns
