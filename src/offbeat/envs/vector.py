"""The protocol of a vector of N environments, and conversions that its implementations share."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from offbeat.envs.reader import all_finite
from offbeat.errors import OffbeatError, UsageError
from offbeat.types import Array, EnvSpec, Observation, Step


class Vector(Protocol):
    """N environments that are stepped together. Every episode is reset with its own seed.

    The arrays of an Observation or a Step are immutable: neither the vector nor its caller may write to them.
    """

    spec: EnvSpec
    num_envs: int
    rebuilds: bool
    """Whether `restore` can continue an interrupted episode."""

    @property
    def stepping(self) -> bool:
        """Whether an environment's code is running (step, reset, close or its creation).

        Only then may a signal handler raise EnvironmentHung, which becomes a fault of that environment.
        """
        ...

    @property
    def unwrapped_envs(self) -> tuple[object, ...]:
        """The unwrapped environments, to detect an environment object that is used in two vectors."""
        ...

    @property
    def outermost_env(self) -> object:
        """The first environment, or the VectorEnv, including all wrappers."""
        ...

    @property
    def unused_mask(self) -> bool:
        """Whether info had an action mask at the last reset although mask_key is not set."""
        ...

    def reset(self, episode: int = 0) -> Observation:
        """Starts this episode in every environment. The same number gives the same seed, so the same episode."""
        ...

    def step(self, action: Array) -> Step:
        """action (N, A): in [-1, 1], or for Discrete, MultiDiscrete and MultiBinary actions indices from 0."""
        ...

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The state of every environment, as arrays and JSON values."""
        ...

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> tuple[Observation, list[str]]:
        """Continues from a snapshot. Returns the next observation, and a message for each inexact restore."""
        ...

    def render(self) -> Array | None:
        """A frame of environment 0; None if it does not render."""
        ...

    def close(self) -> None: ...


def scale(spec: EnvSpec, action: Array, num_envs: int, first_env: int = 0) -> Array:
    """Converts actions (N, A) to the environments' format; raises for a wrong shape or NaN.

    MuJoCo would treat NaN as zero, and training would continue with a diverged policy.
    """
    if action.shape != (num_envs, spec.action_size):
        raise UsageError(
            f"action has shape {action.shape}, but it must have shape {(num_envs, spec.action_size)} for {num_envs} "
            f"environments ({spec.name}) with {spec.action_size} action dimensions"
        )
    if not all_finite(action):
        row = int(np.argwhere(~np.isfinite(action))[0, 0])
        raise OffbeatError(
            f"the action for environment {first_env + row} ({spec.name}) is {action[row].tolist()}, but actions must "
            "be finite; NaN means that the policy's weights have diverged: lower the learning rates, or set "
            "max_grad_norm"
        )
    return spec.to_environment(action)


def frame(picture: Any) -> Array | None:
    """One frame (height, width, 3) from the result of `render`; the last one if it returned several."""
    if isinstance(picture, list | tuple):
        picture = picture[-1] if picture else None
    return picture if isinstance(picture, np.ndarray) and picture.ndim == 3 else None
