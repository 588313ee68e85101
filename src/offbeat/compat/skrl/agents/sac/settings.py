"""The agent's settings and sizes as those of our core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offbeat.algorithms.configs import SAC as SACConfig
from offbeat.algorithms.configs import Fixed, Learned
from offbeat.algorithms.configs.groups import ActorCriticRates, Optimisation, ReplayUse, Returns, Target
from offbeat.compat.skrl.agents.sac.sac_cfg import SAC_CFG
from offbeat.layout import Layout, Leaf
from offbeat.types import EnvSpec

CRITICS = ("critic_1", "critic_2")
TARGETS = ("target_critic_1", "target_critic_2")
MODELS = ("policy", *CRITICS, *TARGETS)
GROUPS = {"actor": "actor_", "critic": "critic_", "temperature": "temperature_"}
_NEVER = 2**31 - 1  # the largest number of updates that JAX can count


@dataclass(frozen=True)
class Sizes:
    """Numbers in an observation, in a state (0 without one) and in an action."""

    observation: int
    state: int
    action: int

    def split(self, joined: Any) -> dict[str, Any]:
        """A model's inputs, from observations and states side by side."""
        if not self.state:
            return {"observations": joined, "states": None}
        return {"observations": joined[:, : self.observation], "states": joined[:, self.observation :]}


def spec_of(sizes: Sizes) -> EnvSpec:
    """An environment without bounds, whose observations are those of the models with the states beside them."""
    leaf = Leaf((), "box", (sizes.observation + sizes.state,), "float32")
    low, high = (-np.inf,) * sizes.action, (np.inf,) * sizes.action
    return EnvSpec("skrl", Layout((leaf,)), low, high, (sizes.action,))


def target_entropy(config: SACConfig, action_size: int) -> float | None:
    """The target entropy; None where the temperature is fixed."""
    goal = getattr(config.temperature, "target_entropy", _NEVER)
    return None if goal == _NEVER else -float(action_size) if goal is None else goal


def core_config(cfg: SAC_CFG) -> SACConfig:
    """Our settings for those of the agent."""
    rates, value = [float(each) for each in cfg.learning_rate], float(cfg.initial_entropy_value)  # type: ignore[union-attr]
    goal = None if cfg.target_entropy is None else float(cfg.target_entropy)
    return SACConfig(
        returns=Returns(gamma=float(cfg.discount_factor)),
        replay=ReplayUse(batch_size=int(cfg.batch_size)),
        rates=ActorCriticRates(actor_learning_rate=rates[0], critic_learning_rate=rates[1]),
        temperature=Learned(initial=value, target_entropy=goal) if cfg.learn_entropy else Fixed(value=value),
        temperature_learning_rate=rates[2] if cfg.learn_entropy else SACConfig.temperature_learning_rate,
        target=Target(tau=float(cfg.polyak) or 1.0, target_every=1 if cfg.polyak else _NEVER),
        optimisation=Optimisation(max_grad_norm=float(cfg.grad_norm_clip) if cfg.grad_norm_clip > 0 else None),
    )
