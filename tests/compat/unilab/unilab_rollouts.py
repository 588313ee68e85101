"""Small models and rollouts in float64, for tests of UniLab's APPO learner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offbeat.compat.unilab import APPOLearner, MLPModel

STEPS, ENVS, OBS, CRITIC, ACTIONS = 6, 4, 5, 7, 2
GROUPS = {"actor": ["policy"], "critic": ["policy"]}


def model(size: int, outputs: int, seed: int, **options: Any) -> MLPModel:
    torch.manual_seed(seed)
    made = MLPModel({"policy": torch.zeros(1, size)}, GROUPS, "actor", outputs, hidden_dims=(16, 8), **options)
    return made.double()


def learner(critic_size: int = OBS, normalise: bool = False, gaussian: Any = None, **options: Any) -> APPOLearner:
    gaussian = {"class_name": "GaussianDistribution", **(gaussian or {})}
    actor = model(OBS, ACTIONS, 1, distribution_cfg=gaussian, obs_normalization=normalise)
    return APPOLearner(actor, model(critic_size, 1, 2, obs_normalization=normalise), **options)


def rollout(seed: int = 0, older: float = 0.4, critic: bool = False, ends: float = 0.2) -> dict[str, Tensor]:
    """Random rows. older: how far the log-probabilities are from those of a unit Gaussian around 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    actions = 0.7 * normal(STEPS, ENVS, ACTIONS)
    likely = torch.distributions.Normal(0.0, 1.0).log_prob(actions).sum(-1)
    batch = {
        "observations": normal(STEPS, ENVS, OBS),
        "actions": actions,
        "rewards": normal(STEPS, ENVS),
        "dones": (torch.rand(STEPS, ENVS, generator=generator) < ends).double(),
        "actions_log_prob": likely + older * normal(STEPS, ENVS),
        "last_obs": normal(ENVS, OBS),
    }
    if critic:
        batch |= {"critic": normal(STEPS, ENVS, CRITIC), "last_critic": normal(ENVS, CRITIC)}
    return batch
