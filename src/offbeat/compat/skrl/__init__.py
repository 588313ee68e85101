"""skrl's documented interface (version 2) for SAC, under skrl's own import paths, on our core.

Short imports are PyTorch's; JAX's classes are under agents.jax, models.jax, memories.jax, trainers.jax, ...
"""

from offbeat.compat.skrl.agents.torch import Agent, AgentCfg, ExperimentCfg
from offbeat.compat.skrl.agents.torch.sac import SAC, SAC_CFG, SAC_RNN
from offbeat.compat.skrl.envs.wrappers.torch import Wrapper, wrap_env
from offbeat.compat.skrl.framework import config, logger
from offbeat.compat.skrl.memories.torch import Memory, RandomMemory
from offbeat.compat.skrl.models.torch import DeterministicMixin, GaussianMixin, Model, MultivariateGaussianMixin
from offbeat.compat.skrl.resources.preprocessors.torch import RunningStandardScaler
from offbeat.compat.skrl.resources.schedulers.torch import KLAdaptiveLR, KLAdaptiveRL
from offbeat.compat.skrl.trainers.torch import (
    ParallelTrainer,
    ParallelTrainerCfg,
    SequentialTrainer,
    SequentialTrainerCfg,
    StepTrainer,
    StepTrainerCfg,
)
from offbeat.compat.skrl.utils import set_seed

__version__ = "2.1.1"
"""The version of skrl whose interface this is."""

__all__ = [
    "SAC",
    "SAC_CFG",
    "SAC_RNN",
    "Agent",
    "AgentCfg",
    "DeterministicMixin",
    "ExperimentCfg",
    "GaussianMixin",
    "KLAdaptiveLR",
    "KLAdaptiveRL",
    "Memory",
    "Model",
    "MultivariateGaussianMixin",
    "ParallelTrainer",
    "ParallelTrainerCfg",
    "RandomMemory",
    "RunningStandardScaler",
    "SequentialTrainer",
    "SequentialTrainerCfg",
    "StepTrainer",
    "StepTrainerCfg",
    "Wrapper",
    "config",
    "logger",
    "set_seed",
    "wrap_env",
]
