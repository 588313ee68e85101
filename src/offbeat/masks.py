"""Action masks: checks of a mask, and uniform sampling among the allowed actions.

A mask (K,) of bools belongs to an observation: True for each action that is allowed there. K is the number of Discrete
actions, or the number of choices of all branches of a MultiDiscrete or MultiBinary space, one branch after the other.
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
"""The usual key of a mask in `info`."""


class BadMask(ValueError):
    """An invalid mask; the message continues a sentence that begins with the mask's name."""


def as_mask(value: Any, branches: Sequence[int], terminated: bool = False) -> Array:
    """Converts a mask from an environment or a user to (K,) bools; raises BadMask if it is invalid.

    branches: the number of choices of each branch; one number for Discrete actions. terminated: whether the episode has
    terminated. No action follows then, so a mask that allows nothing is replaced by one that allows everything.
    """
    size = sum(branches)
    try:
        mask = np.asarray(value)
    except ValueError as error:
        raise BadMask(f"is not an array of numbers: {value!r:.200}") from error
    if mask.shape != (size,):
        of = f"{size} actions" if len(branches) == 1 else f"{size} choices in branches of {tuple(branches)}"
        raise BadMask(f"has shape {mask.shape}, but it must have shape ({size},), because there are {of}")
    if mask.dtype != np.bool_:
        if mask.dtype.kind not in "iuf" or not np.isin(mask, (0, 1)).all():
            raise BadMask(f"is {value!r:.200}, but it must hold 1 for each allowed action and 0 for the others")
        mask = mask.astype(bool)
    empty = [branch for branch, part in enumerate(np.split(mask, np.cumsum(branches)[:-1])) if not part.any()]
    if not empty:
        return mask
    if terminated:
        return np.ones(size, bool)
    what = "action" if len(branches) == 1 else f"choice in branch {empty[0]}"
    raise BadMask(
        f"allows no {what}, but must allow at least one until the episode terminates: {mask.astype(int).tolist()}"
    )


def sample(rng: np.random.Generator, mask: Array, branches: Sequence[int]) -> Array:
    """Samples action indices (N, A) float32, uniformly among those that each row of the mask (N, K) allows."""
    action = np.empty((len(mask), len(branches)), np.float32)
    for branch, part in enumerate(np.split(mask, np.cumsum(branches)[:-1], axis=1)):
        rank = (rng.random(len(mask)) * part.sum(1)).astype(np.int64)
        action[:, branch] = (part.cumsum(1) > rank[:, None]).argmax(1)
    return action


def read_masks(
    mask: Any, raw: Any, count: int, spec: EnvSpec, name: str, terminated: Sequence[bool] = ()
) -> Array | None:
    """The checked mask (N, K) of `count` observations: `mask`, or the one in a Dict observation; None if unmasked.

    raw: the observation, or a stack of them. name: of the mask, in errors. terminated: as for `as_mask`, per row.
    """
    if mask is None and spec.mask_from == "observation":
        mask = raw[spec.mask_key] if isinstance(raw, dict) else None
    if mask is None:
        if spec.mask_key is None:
            return None
        where = "observation" if spec.mask_from == "observation" else "info"
        raise UsageError(
            f"{name} is missing, but this policy needs an action mask; pass {name}={where}[{spec.mask_key!r}] of the "
            "same observation"
        )
    if not spec.counts:
        raise UsageError(f"{name} was given, but {spec.name} has Box actions, which cannot be masked; leave {name} out")
    try:
        rows = [mask] if count == 1 and np.ndim(mask) == 1 else list(mask)
        if len(rows) != count:
            raise BadMask(f"has {len(rows)} rows, but it must have one row for each of the {count} observations")
        return np.stack(
            [as_mask(row, spec.counts, bool(len(terminated)) and bool(terminated[at])) for at, row in enumerate(rows)]
        )
    except (TypeError, BadMask) as error:
        raise UsageError(f"{name} {error}") from error


def permits(mask: Array, action: Array, branches: Sequence[int]) -> bool:
    """Whether the mask (N, K) allows all actions, indices (N, A)."""
    starts = np.cumsum((0, *branches[:-1]))
    return bool(np.take_along_axis(mask, starts + action.astype(np.int64), 1).all())
