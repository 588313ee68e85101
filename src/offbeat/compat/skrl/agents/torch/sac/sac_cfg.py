"""Settings of SAC in torch."""

from __future__ import annotations

import dataclasses

from offbeat.compat.skrl.agents.sac import sac_cfg


@dataclasses.dataclass(kw_only=True)
class SAC_CFG(sac_cfg.SAC_CFG):
    """Settings of SAC. Three values are for policy, critics and entropy coefficient; a single one is for all three.

    gradient_steps: updates for each vector step. polyak: share by which the targets move. random_timesteps,
    learning_starts: vector steps with random actions, and without updates. grad_norm_clip: 0 and less for none.
    initial_entropy_value: the first entropy coefficient, or the only one without learn_entropy. target_entropy: minus
    the size of the actions if None. rewards_shaper: (rewards, timestep, timesteps) -> rewards. mixed_precision: models
    compute in half precision.
    """

    mixed_precision: bool = False
