"""metarl's OffPolicyRLAlgorithm with its runner, buffer, policies, q-functions and exploration, over Offbeat.

The subpackages have metarl's names; everything can also be imported from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offbeat.compat.metarl.envs import EnvSpec, MetaRLEnv, normalize
    from offbeat.compat.metarl.epoch_row import tabular
    from offbeat.compat.metarl.experiment import LocalRunner, SnapshotConfig, wrap_experiment
    from offbeat.compat.metarl.experiment.deterministic import set_seed
    from offbeat.compat.metarl.np.algos import OffPolicyRLAlgorithm, RLAlgorithm
    from offbeat.compat.metarl.np.exploration_policies import (
        AddGaussianNoise,
        AddOrnsteinUhlenbeckNoise,
        EpsilonGreedyPolicy,
        ExplorationPolicy,
    )
    from offbeat.compat.metarl.performance import log_performance
    from offbeat.compat.metarl.replay_buffer import PathBuffer
    from offbeat.compat.metarl.torch.algos import DDPG, DQN
    from offbeat.compat.metarl.torch.policies import DeterministicMLPPolicy, DiscreteQfDerivedPolicy
    from offbeat.compat.metarl.torch.q_functions import ContinuousMLPQFunction, DiscreteMLPQFunction

__all__ = [
    "DDPG",
    "DQN",
    "AddGaussianNoise",
    "AddOrnsteinUhlenbeckNoise",
    "ContinuousMLPQFunction",
    "DeterministicMLPPolicy",
    "DiscreteMLPQFunction",
    "DiscreteQfDerivedPolicy",
    "EnvSpec",
    "EpsilonGreedyPolicy",
    "ExplorationPolicy",
    "LocalRunner",
    "MetaRLEnv",
    "OffPolicyRLAlgorithm",
    "PathBuffer",
    "RLAlgorithm",
    "SnapshotConfig",
    "log_performance",
    "normalize",
    "set_seed",
    "tabular",
    "wrap_experiment",
]

_MODULES = {
    "envs": ("EnvSpec", "MetaRLEnv", "normalize"),
    "epoch_row": ("tabular",),
    "experiment": ("LocalRunner", "SnapshotConfig", "wrap_experiment"),
    "experiment.deterministic": ("set_seed",),
    "np.algos": ("OffPolicyRLAlgorithm", "RLAlgorithm"),
    "np.exploration_policies": (
        *("AddGaussianNoise", "AddOrnsteinUhlenbeckNoise", "EpsilonGreedyPolicy", "ExplorationPolicy"),
    ),
    "performance": ("log_performance",),
    "replay_buffer": ("PathBuffer",),
    "torch.algos": ("DDPG", "DQN"),
    "torch.policies": ("DeterministicMLPPolicy", "DiscreteQfDerivedPolicy"),
    "torch.q_functions": ("ContinuousMLPQFunction", "DiscreteMLPQFunction"),
}
_FOUND_IN = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _FOUND_IN:
        return getattr(importlib.import_module(f"{__name__}.{_FOUND_IN[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
