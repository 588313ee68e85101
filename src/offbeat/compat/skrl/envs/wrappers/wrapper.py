"""Environments behind tensors, and what a step truly was where an environment resets itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np

from offbeat.compat.skrl.arrays import Arrays
from offbeat.types import Array

TRUE_STEP = "offbeat/true_step"
"""The key of `TrueStep` in infos."""


@dataclass(frozen=True)
class TrueStep:
    """What a step of N environments truly was, where `step` returns first observations of next episodes.

    next_observations (N, O), a tensor: final ones where an episode ended. valid (N,) bool, NumPy's: False where the
    call only reset.
    """

    next_observations: Any
    valid: Array

    def rows(self, start: int, stop: int) -> TrueStep:
        return TrueStep(self.next_observations[start:stop], self.valid[start:stop])


def valid_rows(infos: Any) -> Array | None:
    """(N,) bool: False where a step only reset an environment; None, for all rows valid, where infos does not say."""
    found = infos.get(TRUE_STEP) if isinstance(infos, Mapping) else None
    return None if found is None else found.valid


def true_step(step: Mapping[str, Any], infos: Any) -> dict[str, Any]:
    """The tensors of a transition, with what infos says about it: true successors, and only rows that are valid."""
    found = infos.get(TRUE_STEP) if isinstance(infos, Mapping) else None
    if found is None:
        return dict(step)
    step = {**step, "next_observations": found.next_observations}
    if found.valid.all():
        return step
    rows = np.flatnonzero(found.valid)
    return {name: None if tensor is None else tensor[rows] for name, tensor in step.items()}


def scoped(infos: Any, start: int, stop: int) -> Any:
    """infos for the environments [start, stop)."""
    if not isinstance(infos, Mapping) or TRUE_STEP not in infos:
        return infos
    return {**infos, TRUE_STEP: infos[TRUE_STEP].rows(start, stop)}


class AnyWrapper(ABC):
    """`Wrapper` of either framework, which sets `arrays`.

    An environment, or a vector of N, whose observations, rewards and flags are tensors (N, size).

    A wrapper with `snapshot` and `restore`, as ours has them, is saved with an agent's checkpoints.
    """

    arrays: ClassVar[Arrays]

    def __init__(self, env: Any) -> None:
        self._env = env
        self._unwrapped = getattr(env, "unwrapped", env)
        self._device = self.arrays.device(getattr(self._unwrapped, "device", None))

    def __getattr__(self, key: str) -> Any:
        if not key.startswith("__") and "_env" in self.__dict__:
            for owner in (self._env, self._unwrapped):
                if hasattr(owner, key):
                    return getattr(owner, key)
        raise AttributeError(f"neither {type(self).__name__} nor its environment has an attribute {key!r}")

    @abstractmethod
    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Observations (N, O) and infos."""

    @abstractmethod
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Observations (N, O), rewards, terminated and truncated (N, 1), and infos."""

    @abstractmethod
    def state(self) -> Any:
        """Privileged states (N, S) that belong to the last observations, or None."""

    @abstractmethod
    def render(self, *args: Any, **kwargs: Any) -> Any: ...

    @abstractmethod
    def close(self) -> None: ...

    @property
    def device(self) -> Any:
        """The environment's own device, or the default one."""
        return self._device

    @property
    def num_envs(self) -> int:
        return int(getattr(self._unwrapped, "num_envs", 1))

    @property
    def num_agents(self) -> int:
        return int(getattr(self._unwrapped, "num_agents", 1))

    @property
    def state_space(self) -> gymnasium.Space | None:
        """The environment's attribute of this name, or None."""
        return getattr(self._unwrapped, "state_space", None)

    @property
    def observation_space(self) -> gymnasium.Space:
        space: gymnasium.Space = self._unwrapped.observation_space
        return space

    @property
    def action_space(self) -> gymnasium.Space:
        space: gymnasium.Space = self._unwrapped.action_space
        return space
