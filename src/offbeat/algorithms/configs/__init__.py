"""Every setting, as frozen dataclasses; imports no backend.

Each field is made by `setting(default, help, ...)`; its range is checked when the dataclass is made, wherever the value
came from (Python, YAML, command line). A union of dataclasses (temperature) surfaces as flat keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.algorithms.configs.idle import IdleSetting
from offbeat.algorithms.configs.learning import SCHEDULES, Activation, Learning, Reference
from offbeat.algorithms.configs.off_policy import (
    DDPG,
    DQN,
    REDQ,
    SAC,
    TD3,
    ActorCritic,
    EpsilonGreedy,
    Fixed,
    Gaussian,
    Learned,
    OffPolicy,
    OrnsteinUhlenbeck,
)
from offbeat.algorithms.configs.on_policy import APPO, PPO, AdaptiveRate, FixedRate, Optimiser
from offbeat.algorithms.configs.run import Run, check_needs

__all__ = [
    "ALGORITHMS",
    "APPO",
    "DDPG",
    "DQN",
    "PPO",
    "REDQ",
    "SAC",
    "SCHEDULES",
    "TD3",
    "Activation",
    "ActorCritic",
    "AdaptiveRate",
    "Algorithm",
    "Config",
    "EpsilonGreedy",
    "Fixed",
    "FixedRate",
    "Gaussian",
    "IdleSetting",
    "Learned",
    "Learning",
    "OffPolicy",
    "Optimiser",
    "OrnsteinUhlenbeck",
    "Reference",
    "Run",
]

Algorithm = Learning
ALGORITHMS: dict[str, type[Algorithm]] = {
    "sac": SAC,
    "redq": REDQ,
    "td3": TD3,
    "ddpg": DDPG,
    "dqn": DQN,
    "ppo": PPO,
    "appo": APPO,
}


@dataclass(frozen=True)
class Config:
    """What a run is made from: an algorithm by name, its settings, and the run's."""

    algorithm: str
    run: Run
    learner: Algorithm

    def __post_init__(self) -> None:
        check_needs(self.learner, self.run)
