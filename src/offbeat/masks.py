"""Masks of allowed actions: what one must look like, and uniform draws among the actions that it allows.

A mask (K,) of bools stands beside an observation, True for each action that may be taken there. K is the number of
Discrete actions; or of the choices of all branches of a MultiDiscrete or MultiBinary space, one branch after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from offbeat.errors import UsageError

if TYPE_CHECKING:
    from offbeat.types import EnvSpec

Array = npt.NDArray[Any]
USUAL_KEY = "action_mask"
"""What environments usually call it in `info`."""


class BadMask(ValueError):
    """A mask that cannot be one, in words that follow its name."""


def as_mask(value: Any, branches: Sequence[int], over: bool = False) -> Array:
    """A mask (K,) of bools from what an environment or a user gave, checked; BadMask otherwise.

    branches: the choices of each, one number for Discrete actions. over: the episode has terminated, so that nobody
    acts any more: a mask that allows nothing then becomes one that allows everything, and has no effect.
    """
    size = sum(branches)
    try:
        mask = np.asarray(value)
    except ValueError as error:
        raise BadMask(f"is no array of numbers: {value!r:.200}") from error
    if mask.shape != (size,):
        of = f"{size} actions" if len(branches) == 1 else f"{size} choices in branches of {tuple(branches)}"
        raise BadMask(f"has shape {mask.shape}, but there are {of}, so it must have shape ({size},)")
    if mask.dtype != np.bool_:
        if mask.dtype.kind not in "iuf" or not np.isin(mask, (0, 1)).all():
            raise BadMask(f"is {value!r:.200}, but it must hold 1 for an action that is allowed, and 0 for others")
        mask = mask.astype(bool)
    empty = [branch for branch, part in enumerate(np.split(mask, np.cumsum(branches)[:-1])) if not part.any()]
    if not empty:
        return mask
    if over:
        return np.ones(size, bool)
    what = "action" if len(branches) == 1 else f"choice in branch {empty[0]}"
    raise BadMask(f"allows no {what}, but must allow one until the episode has terminated: {mask.astype(int).tolist()}")


def draw(rng: np.random.Generator, mask: Array, branches: Sequence[int]) -> Array:
    """Uniform draws (N, A), float32 indices, among what each row of the mask (N, K) allows in each branch."""
    action = np.empty((len(mask), len(branches)), np.float32)
    for branch, part in enumerate(np.split(mask, np.cumsum(branches)[:-1], axis=1)):
        rank = (rng.random(len(mask)) * part.sum(1)).astype(np.int64)
        action[:, branch] = (part.cumsum(1) > rank[:, None]).argmax(1)
    return action


def given(mask: Any, raw: Any, count: int, spec: EnvSpec, name: str, over: Sequence[bool] = ()) -> Array | None:
    """The mask (N, K) of `count` observations that a user passed, or that a Dict observation holds; None without any.

    raw: the observation, or a stack of them. name: what the mask is called in errors. over: as for `as_mask`, by row.
    """
    if mask is None and spec.mask_from == "observation":
        mask = raw[spec.mask_key] if isinstance(raw, dict) else None
    if mask is None:
        if spec.mask_key is None:
            return None
        where = "observation" if spec.mask_from == "observation" else "info"
        raise UsageError(
            f"{name} is missing, but the policy acts under a mask: pass {name}={where}[{spec.mask_key!r}] of the "
            "same observation"
        )
    if not spec.counts:
        raise UsageError(
            f"{name} was given, but {spec.name} has Box actions, of which none can be masked; leave it out"
        )
    try:
        rows = [mask] if count == 1 and np.ndim(mask) == 1 else list(mask)
        if len(rows) != count:
            raise BadMask(f"has {len(rows)} rows for {count} observations, but each must have one")
        return np.stack([as_mask(row, spec.counts, bool(len(over)) and bool(over[at])) for at, row in enumerate(rows)])
    except (TypeError, BadMask) as error:
        raise UsageError(f"{name} {error}") from error


def permits(mask: Array, action: Array, branches: Sequence[int]) -> bool:
    """Whether every action, indices (N, A), is one that its row of the mask (N, K) allows."""
    starts = np.cumsum((0, *branches[:-1]))
    return bool(np.take_along_axis(mask, starts + action.astype(np.int64), 1).all())
