"""Settings of SAC."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from offbeat.compat.skrl.agents.configuration import AgentCfg
from offbeat.errors import UsageError


@dataclasses.dataclass(kw_only=True)
class SAC_CFG(AgentCfg):
    """Settings of SAC. Three values are for policy, critics and entropy coefficient; a single one is for all three.

    gradient_steps: updates for each vector step. polyak: share by which the targets move. random_timesteps,
    learning_starts: vector steps with random actions, and without updates. grad_norm_clip: 0 and less for none.
    initial_entropy_value: the first entropy coefficient, or the only one without learn_entropy. target_entropy: minus
    the size of the actions if None. rewards_shaper: (rewards, timestep, timesteps) -> rewards.
    """

    gradient_steps: int = 1
    batch_size: int = 64
    discount_factor: float = 0.99
    polyak: float = 0.005
    learning_rate: float | tuple[float, float, float] = 1e-3
    learning_rate_scheduler: type | tuple[type | None, type | None, type | None] | None = None
    learning_rate_scheduler_kwargs: dict[str, Any] | tuple[dict[str, Any], dict[str, Any], dict[str, Any]] = (
        dataclasses.field(default_factory=dict)
    )
    observation_preprocessor: type | None = None
    observation_preprocessor_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    state_preprocessor: type | None = None
    state_preprocessor_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    random_timesteps: int = 0
    learning_starts: int = 0
    grad_norm_clip: float = 0
    learn_entropy: bool = True
    initial_entropy_value: float = 0.2
    target_entropy: float | None = None
    rewards_shaper: Callable[..., Any] | None = None

    def expand(self) -> None:
        AgentCfg.expand(self)
        for name in ("learning_rate", "learning_rate_scheduler", "learning_rate_scheduler_kwargs"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list):
                setattr(self, name, (value, value, value))
            elif len(value) != 3:
                raise UsageError(f"{name}={value!r} has {len(value)} values; give one, or 3: policy, critics, entropy")
        for kwargs in self.learning_rate_scheduler_kwargs:
            if isinstance(kwargs, dict) and "optimizer" in kwargs:
                raise UsageError(
                    "learning_rate_scheduler_kwargs has optimizer, which the agent passes itself; leave it out"
                )

    def validate(self) -> bool:
        """Raises UsageError for a value that is out of range."""
        at_least = {"gradient_steps": 0, "batch_size": 1, "random_timesteps": 0, "learning_starts": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"{name}={value!r} must be an integer of at least {least}")
        for name in ("discount_factor", "polyak"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name}={getattr(self, name)!r} is out of range: it must be from 0 to 1")
        if self.initial_entropy_value < 0 or (self.learn_entropy and self.initial_entropy_value == 0):
            raise UsageError(
                f"initial_entropy_value={self.initial_entropy_value!r} must be above 0 (0 with learn_entropy=False)"
            )
        if self.rewards_shaper is not None and not callable(self.rewards_shaper):
            raise UsageError(
                f"rewards_shaper={self.rewards_shaper!r} must be a function (rewards, timestep, timesteps)"
            )
        return True
