"""The training agent: what learns from a batch, and gives the actor to broadcast."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class TrainingAgent(ABC):
    """To subclass. The `Trainer` saves it through `state_dict` and `load_state_dict`, where it has them."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        self.observation_space, self.action_space, self.device = observation_space, action_space, device

    @abstractmethod
    def train(self, batch: Any) -> dict[str, Any]:
        """One update. batch: (previous observation, action, reward, observation, terminated, truncated), batched.

        Returns numbers by name, whose means are in the statistics of a round.
        """

    @abstractmethod
    def get_actor(self) -> Any:
        """The `ActorModule` to broadcast to the workers."""
