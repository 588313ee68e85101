"""N environments behind one protocol, whoever steps them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from offbeat.envs.reader import all_finite
from offbeat.errors import OffbeatError, UsageError
from offbeat.types import Array, EnvSpec, Observation, Step


class Vector(Protocol):
    """N environments that are stepped together. Every episode is reset with a seed of its own.

    The arrays of an Observation or a Step are never written again; nobody else may write to them either.
    """

    spec: EnvSpec
    num_envs: int
    rebuilds: bool
    """Whether `restore` brings an interrupted episode back."""

    @property
    def stepping(self) -> bool:
        """Whether an environment's own code is running (step, reset, close, making one anew).

        Only then may a signal handler raise EnvironmentHung: there it becomes a fault of that environment.
        """
        ...

    @property
    def owned(self) -> tuple[object, ...]:
        """The unwrapped environments that it steps: an object in two vectors would be stepped by both."""
        ...

    @property
    def wrapped(self) -> object:
        """The first environment, or the VectorEnv, with all of its wrappers."""
        ...

    @property
    def unused_mask(self) -> bool:
        """Whether info had a mask of actions at the last reset, and no mask_key names it."""
        ...

    def reset(self, episode: int = 0) -> Observation:
        """Begins this episode in every environment; the same number is the same episode again, seed and all."""
        ...

    def step(self, action: Array) -> Step:
        """action (N, A): in [-1, 1], or for Discrete, MultiDiscrete and MultiBinary actions indices from 0."""
        ...

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Where every environment stands, as arrays and JSON values."""
        ...

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> tuple[Observation, list[str]]:
        """Goes on from a snapshot: the observation to act on next, and a sentence for whatever is not exact."""
        ...

    def render(self) -> Array | None:
        """A picture of environment 0, if it draws any."""
        ...

    def close(self) -> None: ...


def scale(spec: EnvSpec, action: Array, num_envs: int, first_env: int = 0) -> Array:
    """Actions (N, A), as `step` takes them, to the environments' own; wrong shapes and NaN are refused here.

    MuJoCo would take NaN for zero, and training would go on with a policy that is broken.
    """
    if action.shape != (num_envs, spec.action_size):
        raise UsageError(
            f"action has shape {action.shape}, but {num_envs} environments ({spec.name}) with {spec.action_size} "
            f"action dimensions take {(num_envs, spec.action_size)}"
        )
    if not all_finite(action):
        row = int(np.argwhere(~np.isfinite(action))[0, 0])
        raise OffbeatError(
            f"the action for environment {first_env + row} ({spec.name}) is {action[row].tolist()}, but actions must "
            "be finite; a policy gives NaN when its weights have diverged: lower the learning rates, or set "
            "max_grad_norm"
        )
    return spec.to_environment(action)


def frame(picture: Any) -> Array | None:
    """One picture (height, width, 3) from whatever `render` returned; the newest where it returned several."""
    if isinstance(picture, list | tuple):
        picture = picture[-1] if picture else None
    return picture if isinstance(picture, np.ndarray) and picture.ndim == 3 else None
