"""From Gymnasium spaces to layouts and action bounds. Gymnasium is imported when a space is looked at, not before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from offbeat.errors import SpaceError
from offbeat.layout import Layout, Leaf
from offbeat.types import Array, EnvSpec

Path = tuple[str | int, ...]


class Problem(NamedTuple):
    """Why a space cannot be taken, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Bounds:
    """An action space: per-dimension bounds (A,), the shape and dtype that `step` is given.

    choices: if Discrete. branches: (A,) if MultiDiscrete or MultiBinary, otherwise ().
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str
    choices: int | None = None
    branches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What a policy sees (`layout`), and what only a critic sees if a key of the observation holds it (`state`).

    mask: whether a key of the observation holds the mask of allowed actions.
    """

    layout: Layout
    state: Layout | None
    mask: bool = False


def make_spec(
    name: str,
    seen: Seen,
    bounds: Bounds,
    state_key: str | None,
    max_episode_steps: int | None,
    mask_key: str | None = None,
) -> EnvSpec:
    """The spec of an environment; a state that comes in `info` is added once its first value is known."""
    if mask_key is not None and bounds.choices is None and not bounds.branches:
        raise SpaceError(
            f"mask_key={mask_key!r} names a mask of allowed actions, but {name} has Box actions, of which none can be "
            "masked; leave mask_key out"
        )
    return EnvSpec(
        name=name,
        layout=seen.layout,
        action_low=bounds.low,
        action_high=bounds.high,
        action_shape=bounds.shape,
        action_dtype=bounds.dtype,
        state_key=state_key,
        state_from=None if state_key is None else "observation" if seen.state is not None else "info",
        state=seen.state,
        max_episode_steps=max_episode_steps,
        choices=bounds.choices,
        branches=bounds.branches,
        mask_key=mask_key,
        mask_from=None if mask_key is None else "observation" if seen.mask else "info",
    )


def read_observation_space(space: Any, state_key: str | None = None, mask_key: str | None = None) -> Seen:
    """The layout of an observation space, with the parts under `state_key` and `mask_key` taken out of a Dict."""
    problems = observation_problems(space, state_key, mask_key)
    if problems:
        raise _error(problems)
    masked = _has_key(space, mask_key)
    space = _without(space, mask_key)
    apart = _has_key(space, state_key)
    leaves = [leaf for leaf in _leaves(space, ()) if not (apart and leaf.path[0] == state_key)]
    if not apart:
        return Seen(Layout(tuple(leaves)), None, masked)
    state = _leaves(space.spaces[state_key], (str(state_key),), images=False)
    return Seen(Layout(tuple(leaves)), Layout(tuple(state)), masked)


def observation_problems(space: Any, state_key: str | None = None, mask_key: str | None = None) -> list[Problem]:
    """Each part of an observation space that no algorithm here can take."""
    if mask_key is not None and mask_key == state_key:
        return [Problem(f"state_key and mask_key are both {mask_key!r}", "name two keys, or leave one out")]
    space = _without(space, mask_key)
    problems = _unsupported(space, ())
    if problems:
        return problems
    names = [leaf.name for leaf in _leaves(space, ())]
    problems += [
        Problem(f"two parts of the observation are both named {name!r} once nested keys are joined", "rename one key")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if not names or (_has_key(space, state_key) and len(space.spaces) == 1):
        without = "" if not names else f" besides the privileged state {state_key!r}"
        problems.append(
            Problem(
                f"the observation space {space} has no part{without}, but a policy needs something to see",
                "add what the policy may see to the observation",
            )
        )
    return problems


def read_action_space(space: Any) -> Bounds:
    """The bounds of a Box, Discrete, MultiDiscrete or MultiBinary action space."""
    from gymnasium import spaces

    problems = action_problems(space)
    if problems:
        raise _error(problems)
    if isinstance(space, spaces.Discrete):
        first, last = float(space.start), float(space.start + space.n - 1)
        return Bounds((first,), (last,), (), str(space.dtype), int(space.n))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _branches(space)
    return Bounds(
        tuple(float(bound) for bound in space.low.ravel()),
        tuple(float(bound) for bound in space.high.ravel()),
        tuple(space.shape),
        str(space.dtype),
    )


def action_problems(space: Any) -> list[Problem]:
    """Each reason why no algorithm here can act in this space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return []
    if not isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return [
            Problem(
                f"the action space {space} is neither a Box of floats nor Discrete, MultiDiscrete or MultiBinary",
                "no algorithm serves it as it is: declare one Box of floats in an env_wrapper "
                "(gymnasium.wrappers.TransformAction) and take it apart there",
            )
        ]
    if 0 in space.shape:
        return [Problem(f"the action space {space} has no dimension", "give the agent at least one number to act with")]
    if not isinstance(space, spaces.Box):
        return []
    if not np.issubdtype(space.dtype, np.floating):
        return [
            Problem(
                f"the action space {space} has dtype {space.dtype}, but continuous actions need a float dtype",
                "declare a float Box in an env_wrapper, and round to whole numbers inside its step",
            )
        ]
    return [*_infinite_bounds(space), *_empty_ranges(space)]


def info_layout(value: Any, key: str) -> Layout:
    """The layout of a privileged state that comes in `info[key]`, from its first value: any array of numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise SpaceError(
            f"info[{key!r}] is {value!r}, but a privileged state is an array of numbers; put "
            "np.asarray(..., np.float32) there"
        )
    if not array.size:
        raise SpaceError(f"info[{key!r}] is empty, but a privileged state needs at least one number")
    return Layout((Leaf((), "box", array.shape, "float32"),))


def missing_key(space: Any, setting: str, key: str) -> str:
    """What to say where neither the observation space nor `info` has what a setting names."""
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
    """The space; where it is a Dict that has the key, without it."""
    from gymnasium import spaces

    if not _has_key(space, key):
        return space
    return spaces.Dict({name: part for name, part in space.spaces.items() if name != key})


def _members(space: Any) -> list[tuple[str | int, Any]] | None:
    """The parts of a Dict (keys sorted) or a Tuple (by position); None for a space that has no parts."""
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
    return [Problem(f"{where} is {space}, but observations are Box, Discrete, and Dict or Tuple of these", remedy)]


def _branches(space: Any) -> Bounds:
    """The bounds of a MultiDiscrete or MultiBinary space."""
    from gymnasium import spaces

    counts, first = np.full(space.shape, 2), np.zeros(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        counts, first = space.nvec, space.start
    low, branches = first.astype(np.float64).ravel(), counts.astype(np.int64).ravel()
    return Bounds(
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
            f"{space.high[first]}, but actions in [-1, 1] are scaled to the bounds, so these must be finite",
            "declare finite ones in an env_wrapper: lambda env: gymnasium.wrappers.TransformAction(env, lambda action: "
            "action, gymnasium.spaces.Box(low, high)); RescaleAction and ClipAction cannot do it",
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
            "correct the bounds, or leave out a dimension that cannot move",
        )
    ]
