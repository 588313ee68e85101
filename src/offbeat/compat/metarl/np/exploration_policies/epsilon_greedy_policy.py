"""Random actions with a probability that falls."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.compat.metarl.envs.env_spec import own_spec
from offbeat.compat.metarl.np.exploration_policies.exploration_policy import Disturbed, ExplorationPolicy
from offbeat.errors import UsageError
from offbeat.policies.exploration import RandomChoice


class EpsilonGreedyPolicy(ExplorationPolicy):
    """With probability epsilon a uniformly random action, otherwise the policy's.

    Epsilon falls linearly from max_epsilon to min_epsilon over the first decay_ratio * total_timesteps actions.
    """

    def __init__(
        self,
        env_spec: Any,
        policy: Any,
        *,
        total_timesteps: int,
        max_epsilon: float = 1.0,
        min_epsilon: float = 0.02,
        decay_ratio: float = 0.1,
    ) -> None:
        super().__init__(policy)
        for name, value in {"max_epsilon": max_epsilon, "min_epsilon": min_epsilon, "decay_ratio": decay_ratio}.items():
            if not 0.0 <= value <= 1.0:
                raise UsageError(f"{name}={value} is out of range: it must be from 0 to 1")
        period = max(1, int(total_timesteps * decay_ratio))
        description = {"initial": max_epsilon, "final": min_epsilon, "steps": period, "decay": "linear"}
        self._choice = RandomChoice(description, own_spec(env_spec))
        self._disturbed = Disturbed(env_spec, self._choice)
        self._actions_given = 0

    @property
    def epsilon(self) -> float:
        """The probability of a random action at the next action."""
        return self._choice.epsilon(self._actions_given)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        action = self._disturbed.action(self.policy, observation, self._actions_given)
        self._actions_given += 1
        return action, {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        actions = self._disturbed.actions(self.policy, np.asarray(observations), self._actions_given)
        self._actions_given += len(actions)
        return actions, {}
