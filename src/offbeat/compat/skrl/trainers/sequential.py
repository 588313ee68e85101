"""Agents one after the other."""

from __future__ import annotations

import dataclasses
from typing import Any

from offbeat.compat.skrl.trainers.trainer import AnyTrainer, TrainerCfg, initialised, trainer_settings


@dataclasses.dataclass(kw_only=True)
class SequentialTrainerCfg(TrainerCfg):
    """Settings of `SequentialTrainer`."""


class InTurn(AnyTrainer):
    """`SequentialTrainer` of either framework: lets agents act and learn one after the other in each step."""

    def __init__(
        self,
        *,
        env: Any,
        agents: Any,
        scopes: list[int] | None = None,
        cfg: SequentialTrainerCfg | dict[str, Any] = {},  # noqa: B006 - the documented default
    ) -> None:
        AnyTrainer.__init__(
            self, env=env, agents=agents, scopes=scopes, cfg=trainer_settings(SequentialTrainerCfg, cfg)
        )
        initialised(self)
