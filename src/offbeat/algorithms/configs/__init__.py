"""Every setting, as frozen dataclasses that are composed of groups; imports no backend.

Each field is made by `setting(default, help, ...)`, and each group by `group(kind)`. Ranges are checked when a config
is made, wherever the value came from (Python, YAML, command line). The keys of groups are flat; so are those of a union
of dataclasses (temperature), with its name as the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offbeat import flat
from offbeat.algorithms.configs import groups
from offbeat.algorithms.configs.checks import IdleSetting, check_config
from offbeat.algorithms.configs.exploration import EpsilonGreedy, Gaussian, OrnsteinUhlenbeck, OwnExploration
from offbeat.algorithms.configs.groups import Activation, Optimisation, Reference
from offbeat.algorithms.configs.off_policy import DQN, SAC, TD3, Fixed, Learned
from offbeat.algorithms.configs.on_policy import APPO, PPO, AdaptiveRate, FixedRate
from offbeat.algorithms.configs.run import Run
from offbeat.ranges import group, setting

__all__ = [
    "APPO",
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "Activation",
    "AdaptiveRate",
    "Config",
    "EpsilonGreedy",
    "Fixed",
    "FixedRate",
    "Gaussian",
    "IdleSetting",
    "Learned",
    "Optimisation",
    "OrnsteinUhlenbeck",
    "OwnExploration",
    "Reference",
    "Run",
    "group",
    "groups",
    "setting",
]


@dataclass(frozen=True)
class Config:
    """What a run is made from.

    algorithm: its name, or `module:thing` for a record of the user's. learner: the algorithm's own settings, an
    instance of the config class of its record.
    """

    algorithm: str
    run: Run
    learner: Any

    def __post_init__(self) -> None:
        check_config(self.learner, flat.values(self.run))
