"""The settings of a run with a learner object, composed of our groups, and the record of its algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from offbeat.algorithms.configs import Config
from offbeat.algorithms.configs.checks import check_config
from offbeat.algorithms.configs.exploration import Gaussian, OrnsteinUhlenbeck, OwnExploration
from offbeat.algorithms.configs.groups import Networks, Normalisation, OwnActorCritic, ReplayUse, Returns
from offbeat.algorithms.registry import Algorithm
from offbeat.compat.unilab.algos.torch.offpolicy.backend import LearnerBackend
from offbeat.ranges import group, setting
from offbeat.types import EnvSpec


@dataclass(frozen=True)
class OffPolicy:
    """A learner object with UniLab's interface."""

    returns: Returns = group(Returns)
    replay: ReplayUse = group(ReplayUse)
    networks: Networks = group(Networks)
    own_networks: OwnActorCritic = group(OwnActorCritic)
    normalisation: Normalisation = group(Normalisation)
    exploration: Gaussian | OrnsteinUhlenbeck | OwnExploration | None = setting(
        None, "The learner's own exploration.", title="exploration"
    )
    updates_per_iteration: int = setting(8, "Updates of one iteration.", at_least=1)
    policy_frequency: int = setting(
        4, "The actor is updated in the first update of an iteration, and once per this many after it.", at_least=1
    )

    def __post_init__(self) -> None:
        check_config(self)


def name_of(algo_type: str) -> str:
    """The name under which runs record their algorithm."""
    return f"unilab_{algo_type}"


def make_algorithm(
    algo_type: str, learner: Any, cuda_events: bool, after_iteration: Callable[[int], None]
) -> Algorithm:
    """The record through which our core runs a learner object."""

    def make_backend(config: Config, spec: EnvSpec, rng: np.random.Generator) -> LearnerBackend:
        return LearnerBackend(
            learner,
            config.learner,
            spec,
            device=config.run.compute.device,
            cuda_events=cuda_events,
            after_iteration=after_iteration,
        )

    return Algorithm(
        name_of(algo_type),
        OffPolicy,
        {"torch": SimpleNamespace(make_backend=make_backend)},
        learns_from="replay",
        actions=("box",),
        groups={},
    )
