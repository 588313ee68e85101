"""Actors to subclass: the policy of a `RolloutWorker`, which the `Trainer` broadcasts as one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from offbeat import durable
from offbeat.compat.tmrl.structures import decode, encode
from offbeat.compat.tmrl.util import collate_torch
from offbeat.errors import UsageError


class ActorModule(ABC):
    """A policy. Its constructor takes at least `observation_space` and `action_space`.

    `save` and `load` use `state_dict` and `load_state_dict`, where it has them; otherwise override both.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space

    def save(self, path: Any) -> None:
        """Writes everything that `load` needs to one file."""
        self._check_saved("state_dict")
        durable.write_file(Path(path), encode(self.state_dict(), "the actor's state_dict"), sync=False)  # type: ignore[attr-defined]

    def load(self, path: Any, device: Any) -> ActorModule:
        """Reads the file that `save` wrote, and returns the actor to use: this one, or another."""
        self._check_saved("load_state_dict")
        self.load_state_dict(decode(durable.read_file(Path(path)), str(path)))  # type: ignore[attr-defined]
        return self.to_device(device)

    def _check_saved(self, method: str) -> None:
        if not callable(getattr(self, method, None)):
            raise UsageError(
                f"the actor {type(self).__name__} has no {method}, and nothing is pickled here; add state_dict and "
                "load_state_dict, or override save(path) and load(path, device)"
            )

    def to_device(self, device: Any) -> ActorModule:
        """The actor with its tensors on `device`; this one as it is, unless overridden."""
        return self

    @abstractmethod
    def act(self, obs: Any, test: bool = False) -> Any:
        """The action, as a NumPy array in the environment's units. test: act without exploration."""

    def act_(self, obs: Any, test: bool = False) -> Any:
        """`act`, as a worker calls it, with an observation from the environment."""
        return self.act(obs, test=test)


class TorchActorModule(ActorModule, torch.nn.Module, ABC):
    """An `ActorModule` that is a `torch.nn.Module`; `act` gets observations as tensors (1, ...) on `device`."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any = "cpu") -> None:
        super().__init__(observation_space, action_space)
        self.device = device

    def act_(self, obs: Any, test: bool = False) -> Any:
        with torch.no_grad():
            return self.act(collate_torch([obs], self.device), test=test)

    def to(self, device: Any) -> Any:  # type: ignore[override]
        self.device = device
        return super().to(device=device)

    def to_device(self, device: Any) -> TorchActorModule:
        moved: TorchActorModule = self.to(device)
        return moved
