"""Converts Gymnasium spaces to observation layouts and action specs. Gymnasium is imported only when needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from offbeat.errors import SpaceError
from offbeat.layout import Layout, Leaf
from offbeat.types import Array, EnvSpec

Path = tuple[str | int, ...]


class Problem(NamedTuple):
    """Why a space is not supported, and the remedy."""

    what: str
    remedy: str


@dataclass(frozen=True)
class ActionSpec:
    """An action space: bounds per dimension (A,), and shape and dtype of the action that `step` takes.

    choices: the number of Discrete actions, else None. branches: the number of choices of each of the A dimensions of
    a MultiDiscrete or MultiBinary space, else ().
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str
    choices: int | None = None
    branches: tuple[int, ...] = ()


@dataclass(frozen=True)
class ObservationLayouts:
    """layout: the policy's input. state: the privileged state for the critic, if it is a key of the observation.

    mask: whether the action mask is a key of the observation.
    """

    layout: Layout
    state: Layout | None
    mask: bool = False


def make_spec(
    name: str,
    layouts: ObservationLayouts,
    bounds: ActionSpec,
    state_key: str | None,
    max_episode_steps: int | None,
    mask_key: str | None = None,
) -> EnvSpec:
    """The spec of an environment. `complete_spec` later adds the layout of a state that comes in `info`."""
    if mask_key is not None and bounds.choices is None and not bounds.branches:
        raise SpaceError(
            f"mask_key={mask_key!r} names an action mask, but {name} has Box actions, which cannot be masked; leave "
            "mask_key out"
        )
    return EnvSpec(
        name=name,
        layout=layouts.layout,
        action_low=bounds.low,
        action_high=bounds.high,
        action_shape=bounds.shape,
        action_dtype=bounds.dtype,
        state_key=state_key,
        state_from=None if state_key is None else "observation" if layouts.state is not None else "info",
        state=layouts.state,
        max_episode_steps=max_episode_steps,
        choices=bounds.choices,
        branches=bounds.branches,
        mask_key=mask_key,
        mask_from=None if mask_key is None else "observation" if layouts.mask else "info",
    )


def read_observation_space(space: Any, state_key: str | None = None, mask_key: str | None = None) -> ObservationLayouts:
    """The layout of an observation space, with the keys `state_key` and `mask_key` of a Dict separated from it."""
    problems = observation_problems(space, state_key, mask_key)
    if problems:
        raise _error(problems)
    masked = _has_key(space, mask_key)
    space = _without(space, mask_key)
    apart = _has_key(space, state_key)
    leaves = [leaf for leaf in _leaves(space, ()) if not (apart and leaf.path[0] == state_key)]
    if not apart:
        return ObservationLayouts(Layout(tuple(leaves)), None, masked)
    state = _leaves(space.spaces[state_key], (str(state_key),), images=False)
    return ObservationLayouts(Layout(tuple(leaves)), Layout(tuple(state)), masked)


def observation_problems(space: Any, state_key: str | None = None, mask_key: str | None = None) -> list[Problem]:
    """All reasons why an observation space is not supported."""
    if mask_key is not None and mask_key == state_key:
        return [Problem(f"state_key and mask_key are both {mask_key!r}", "name two keys, or leave one out")]
    space = _without(space, mask_key)
    problems = _unsupported(space, ())
    if problems:
        return problems
    names = [leaf.name for leaf in _leaves(space, ())]
    problems += [
        Problem(f"two parts of the observation have the joined key {name!r}", "rename one of the keys")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if not names or (_has_key(space, state_key) and len(space.spaces) == 1):
        without = "" if not names else f" besides the privileged state {state_key!r}"
        problems.append(
            Problem(
                f"the observation space {space} has no part{without}, but a policy needs at least one",
                "add the policy's input to the observation",
            )
        )
    return problems


def read_action_space(space: Any) -> ActionSpec:
    """The spec of a Box, Discrete, MultiDiscrete or MultiBinary action space."""
    from gymnasium import spaces

    problems = action_problems(space)
    if problems:
        raise _error(problems)
    if isinstance(space, spaces.Discrete):
        first, last = float(space.start), float(space.start + space.n - 1)
        return ActionSpec((first,), (last,), (), str(space.dtype), int(space.n))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _branches(space)
    return ActionSpec(
        tuple(float(bound) for bound in space.low.ravel()),
        tuple(float(bound) for bound in space.high.ravel()),
        tuple(space.shape),
        str(space.dtype),
    )


def action_problems(space: Any) -> list[Problem]:
    """All reasons why an action space is not supported."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return []
    if not isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return [
            Problem(
                f"the action space {space} is neither a Box of floats nor Discrete, MultiDiscrete or MultiBinary",
                "declare one Box of floats in an env_wrapper (gymnasium.wrappers.TransformAction) and convert it there",
            )
        ]
    if 0 in space.shape:
        return [Problem(f"the action space {space} has no dimension", "declare at least one action dimension")]
    if not isinstance(space, spaces.Box):
        return []
    if not np.issubdtype(space.dtype, np.floating):
        return [
            Problem(
                f"the action space {space} has dtype {space.dtype}, but continuous actions need a float dtype",
                "declare a float Box in an env_wrapper, and round to integers in its step",
            )
        ]
    return [*_infinite_bounds(space), *_empty_ranges(space)]


def info_layout(value: Any, key: str) -> Layout:
    """The layout of a privileged state that comes in `info[key]`, from its first value: any array of numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise SpaceError(
            f"info[{key!r}] is {value!r}, but a privileged state must be an array of numbers; return "
            "np.asarray(..., np.float32)"
        )
    if not array.size:
        raise SpaceError(
            f"info[{key!r}] is empty, but a privileged state needs at least one number; leave state_key out, or fill it"
        )
    return Layout((Leaf((), "box", array.shape, "float32"),))


def missing_key(space: Any, setting: str, key: str) -> str:
    """The message for a setting whose key is neither in the observation space nor in `info`."""
    keys = (
        ", ".join(repr(name) for name in sorted(getattr(space, "spaces", {}), key=str)) if _is_dict(space) else "none"
    )
    return (
        f"{setting}={key!r} is neither a key of the observation space (keys: {keys}) nor of the info that reset "
        "returned; name a key that one of them has"
    )


def _error(problems: list[Problem]) -> SpaceError:
    return SpaceError(". ".join(f"{problem.what}; {problem.remedy}" for problem in problems))


def _is_dict(space: Any) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.Dict)


def _has_key(space: Any, key: str | None) -> bool:
    return key is not None and _is_dict(space) and key in space.spaces


def _without(space: Any, key: str | None) -> Any:
    """The space, without the key if it is a Dict that has it."""
    from gymnasium import spaces

    if not _has_key(space, key):
        return space
    return spaces.Dict({name: part for name, part in space.spaces.items() if name != key})


def _members(space: Any) -> list[tuple[str | int, Any]] | None:
    """The parts of a Dict (by sorted key) or a Tuple (by position); None for a space without parts."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return [(key, space.spaces[key]) for key in sorted(space.spaces, key=str)]
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    return None


def _leaves(space: Any, path: Path, images: bool = True) -> list[Leaf]:
    from gymnasium import spaces

    members = _members(space)
    if members is not None:
        return [leaf for part, member in members for leaf in _leaves(member, (*path, part), images)]
    if isinstance(space, spaces.Discrete):
        return [Leaf(path, "discrete", (int(space.n),), "int64", int(space.start))]
    image = images and space.dtype == np.uint8 and len(space.shape) in (2, 3)
    return [Leaf(path, "image" if image else "box", tuple(space.shape), str(space.dtype))]


def _unsupported(space: Any, path: Path) -> list[Problem]:
    from gymnasium import spaces

    members = _members(space)
    if members is not None:
        return [problem for part, member in members for problem in _unsupported(member, (*path, part))]
    if isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.dtype.kind in "biuf"):
        return []
    where = f"part {'/'.join(map(str, path))!r} of the observation space" if path else "the observation space"
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        remedy = "gymnasium.wrappers.FlattenObservation as env_wrapper turns it into a Box"
    else:
        remedy = "turn it into a Box of fixed shape in an env_wrapper (gymnasium.wrappers.TransformObservation)"
    return [Problem(f"{where} is {space}, but it must be Box, Discrete, or a Dict or Tuple of these", remedy)]


def _branches(space: Any) -> ActionSpec:
    """The spec of a MultiDiscrete or MultiBinary space."""
    from gymnasium import spaces

    counts, first = np.full(space.shape, 2), np.zeros(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        counts, first = space.nvec, space.start
    low, branches = first.astype(np.float64).ravel(), counts.astype(np.int64).ravel()
    return ActionSpec(
        tuple(low.tolist()),
        tuple((low + branches - 1).tolist()),
        tuple(space.shape),
        str(space.dtype),
        branches=tuple(branches.tolist()),
    )


def _dimension(index: Array) -> str:
    return str(int(index[0])) if len(index) == 1 else str(tuple(int(part) for part in index))


def _infinite_bounds(space: Any) -> list[Problem]:
    unbounded = np.argwhere(~(np.isfinite(space.low) & np.isfinite(space.high)))
    if not len(unbounded):
        return []
    first = tuple(unbounded[0])
    others = f" (and {len(unbounded) - 1} more)" if len(unbounded) > 1 else ""
    return [
        Problem(
            f"the action space's dimension {_dimension(unbounded[0])}{others} ranges from {space.low[first]} to "
            f"{space.high[first]}, but bounds must be finite, because actions in [-1, 1] are scaled to them",
            "declare finite bounds in an env_wrapper: lambda env: gymnasium.wrappers.TransformAction(env, lambda "
            "action: action, gymnasium.spaces.Box(low, high)); RescaleAction and ClipAction cannot do this",
        )
    ]


def _empty_ranges(space: Any) -> list[Problem]:
    with np.errstate(invalid="ignore"):
        empty = np.argwhere(np.isfinite(space.low) & np.isfinite(space.high) & (space.low >= space.high))
    if not len(empty):
        return []
    first = tuple(empty[0])
    return [
        Problem(
            f"the action space's dimension {_dimension(empty[0])} ranges from {space.low[first]} to "
            f"{space.high[first]}, but low must be less than high",
            "correct the bounds, or remove a dimension with only one value",
        )
    ]
