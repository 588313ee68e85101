"""A loop of your own: one step per call."""

from __future__ import annotations

import dataclasses
from typing import Any

from offbeat.compat.skrl.trainers.trainer import (
    AnyTrainer,
    Position,
    Results,
    TrainerCfg,
    initialised,
    trainer_settings,
)


@dataclasses.dataclass(kw_only=True)
class StepTrainerCfg(TrainerCfg):
    """Settings of `StepTrainer`."""


class OneByOne(AnyTrainer):
    """`StepTrainer` of either framework: one step in each call of `train` or `eval`. Timesteps are counted from 1."""

    def __init__(
        self,
        *,
        env: Any,
        agents: Any,
        scopes: list[int] | None = None,
        cfg: StepTrainerCfg | dict[str, Any] = {},  # noqa: B006 - the documented default
    ) -> None:
        AnyTrainer.__init__(self, env=env, agents=agents, scopes=scopes, cfg=trainer_settings(StepTrainerCfg, cfg))
        initialised(self)
        self._timestep = 0
        self._position: Position | None = None

    def train(self, timestep: int | None = None, timesteps: int | None = None) -> Results:
        """One step with learning. timestep, timesteps: of this step and of all; counted and as set if None."""
        return self._one(timestep, timesteps, training=True)

    def eval(self, timestep: int | None = None, timesteps: int | None = None) -> Results:
        """One step without learning."""
        return self._one(timestep, timesteps, training=False)

    def _one(self, timestep: int | None, timesteps: int | None, training: bool) -> Results:
        self._call("enable_training_mode", [((training,), {})] * len(self._all))
        if self._position is None:
            self._timestep, self._position = self._begin(resumes=training)
        if timestep is None:
            self._timestep += 1
            timestep = self._timestep
        timesteps = self.cfg.timesteps if timesteps is None else timesteps
        self._position, results = self._interact(self._position, timestep, timesteps, training)
        return results

    def reset(self) -> None:
        """Begins anew: at timestep 1, with a reset of the environments."""
        self._timestep, self._position = 0, None

    @property
    def observations(self) -> Any:
        return None if self._position is None else self._position.observations

    @property
    def states(self) -> Any:
        return None if self._position is None else self._position.states
