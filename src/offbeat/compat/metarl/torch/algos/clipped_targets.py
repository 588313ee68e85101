"""DDPG with clipped targets: TD3's own update, given targets that are computed and clipped before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.algorithms.registry import Algorithm, find
from offbeat.algorithms.torch import td3
from offbeat.algorithms.torch.batch import Batch
from offbeat.types import EnvSpec


@dataclasses.dataclass(frozen=True)
class ClippedTargets:
    """The functions of `td3`, with targets in [low, high]."""

    low: float
    high: float
    init = staticmethod(td3.init)
    noise_shape = staticmethod(td3.noise_shape)
    policy_description = staticmethod(td3.policy_description)

    def update(
        self,
        state: td3.TD3State,
        config: Any,
        spec: EnvSpec,
        batch: Batch,
        noise: Tensor,
        rates: Mapping[str, float],
        updates: int,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """As `td3.update`: a reward that is the target already, with a discount of 0, gives that target."""
        action = td3.act(state.target_actor, batch.next_obs).clamp_(-1.0, 1.0)
        value = state.target(batch.next_obs, batch.next_state, action).amin(0)
        target = torch.addcmul(batch.reward, batch.discount, value).clamp_(self.low, self.high)
        given = dataclasses.replace(batch, reward=target, discount=torch.zeros_like(target))
        return td3.update(state, config, spec, given, noise, rates, updates)


def clipped_ddpg(low: float, high: float) -> Algorithm:
    """The record of DDPG whose targets are clipped."""
    return dataclasses.replace(find("ddpg"), name="ddpg_clipped", modules={"torch": ClippedTargets(low, high)})
