"""An algorithm of a user's own: a record, a config composed of our groups, and our functions of SAC with a twist."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from offbeat.algorithms.configs import checks, groups
from offbeat.algorithms.registry import Algorithm
from offbeat.ranges import group, setting
from offbeat.types import EnvSpec


@dataclass(frozen=True)
class Own:
    """Learns nothing, and acts by a linear policy."""

    returns: groups.Returns = group(groups.Returns, gamma=0.9)
    replay: groups.ReplayUse = group(groups.ReplayUse, batch_size=4)
    networks: groups.Networks = group(groups.Networks, hidden=(4,))
    own_networks: groups.OwnActorCritic = group(groups.OwnActorCritic)
    rates: groups.Rate = group(groups.Rate)
    optimisation: groups.Optimisation = group(groups.Optimisation)
    normalisation: groups.Normalisation = group(groups.Normalisation)
    push: float = setting(0.5, "What an update adds to the count of pushes.", above=0)

    def __post_init__(self) -> None:
        checks.check_config(self)


def init(config: Own, spec: EnvSpec, rng: np.random.Generator, device: Any, dtype: Any) -> Any:
    import torch

    from offbeat.algorithms.torch.actor_critic import make_network
    from offbeat.algorithms.torch.networks import MLP

    @dataclass
    class State:
        actor: Any
        pushes: Any

    sizes = (spec.observation_size, *config.networks.hidden, spec.action_size)
    mlp = MLP(sizes, activation=config.networks.activation, layer_norm=config.networks.layer_norm, rng=rng)
    return State(make_network(config, "actor", mlp, device, dtype), torch.zeros(1, device=device, dtype=dtype))


def noise_shape(config: Own, spec: EnvSpec) -> tuple[int, ...]:
    return (0,)


def update(
    state: Any, config: Own, spec: EnvSpec, batch: Any, noise: Any, rates: dict[str, float], updates: int
) -> tuple[dict[str, Any], Any]:
    state.pushes += config.push * rates["all"]
    return {"pushes": state.pushes.clone()}, batch.reward


def policy_description(config: Own, spec: EnvSpec) -> dict[str, Any]:
    return {"kind": "deterministic", "head": "deterministic", "activation": config.networks.activation}


FUNCTIONS = SimpleNamespace(init=init, noise_shape=noise_shape, update=update, policy_description=policy_description)
ALGORITHM = Algorithm(
    "own",
    Own,
    {"torch": "own_algorithm:FUNCTIONS"},
    learns_from="replay",
    actions=("box",),
    groups={"all": ""},
    run_defaults={"warmup_steps": 10},
    without=("random_steps",),
)
NOT_A_RECORD = 3
