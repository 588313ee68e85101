"""Sizes and limits of Gymnasium spaces, and conversion of their values to tensors (batch, size) and back.

In a flat tensor, members of Dict spaces are in the order of their sorted keys; a Discrete value is one number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from offbeat.compat.skrl.framework import config
from offbeat.errors import SpaceError

Path = tuple[str | int, ...]


def leaves(space: gymnasium.Space | None, path: Path = ()) -> Iterator[tuple[Path, gymnasium.Space]]:
    """The members of nested Dict and Tuple spaces, in the order in which they are flattened."""
    if isinstance(space, spaces.Dict):
        for key in sorted(space.keys()):
            yield from leaves(space[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, member in enumerate(space):
            yield from leaves(member, (*path, index))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
        yield path, space
    elif space is not None:
        raise SpaceError(f"the space {space} is not supported; use Box, Discrete, MultiDiscrete, Dict or Tuple")


def compute_space_size(space: Any, *, occupied_size: bool = False) -> int:
    """The number of elements of a space, 0 for None. space: also a number, or a shape.

    occupied_size: of its flat tensor, in which a Discrete value is one number, and not one number for each choice.
    """
    if isinstance(space, int | float):
        return int(space)
    if isinstance(space, tuple | list):
        return math.prod(int(each) for each in space)
    if space is None:
        return 0
    if not occupied_size:
        return int(spaces.flatdim(space))
    return sum(1 if isinstance(each, spaces.Discrete) else math.prod(each.shape or ()) for _, each in leaves(space))


def compute_space_limits(
    space: gymnasium.Space | None,
    *,
    occupied_size: bool = False,
    device: str | torch.device | None = None,
    none_if_unbounded: Literal["both", "below", "above", "any"] | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Low and high limits (size,) of a space; only Box spaces have some, others are -inf and inf.

    none_if_unbounded: a limit that is infinite everywhere is None: both if both are, the low one (below), the high one
    (above), or each (any).
    """
    if space is None:
        return None, None
    low, high = [], []
    for _, each in leaves(space):
        size = compute_space_size(each, occupied_size=occupied_size)
        limits = (each.low, each.high) if isinstance(each, spaces.Box) else np.full((2, size), ((-np.inf,), (np.inf,)))
        low.append(limits[0].reshape(-1).astype(np.float32))
        high.append(limits[1].reshape(-1).astype(np.float32))
    found = [torch.from_numpy(np.concatenate(each)).to(config.torch.parse_device(device)) for each in (low, high)]
    free = [bool(each.isinf().all()) for each in found]
    if none_if_unbounded == "both":
        free = [all(free)] * 2
    drop = {
        "below": (True, False),
        "above": (False, True),
        "both": (True, True),
        "any": (True, True),
        None: (False,) * 2,
    }
    without = [is_free and may for is_free, may in zip(free, drop[none_if_unbounded], strict=True)]
    return None if without[0] else found[0], None if without[1] else found[1]


def tensorize_space(space: gymnasium.Space | None, x: Any, *, device: str | torch.device | None = None) -> Any:
    """Values of a space as tensors (batch, *shape), in the same structure; None for None."""
    if space is None or x is None:
        return None
    if isinstance(space, spaces.Dict):
        return {key: tensorize_space(member, x[key], device=device) for key, member in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(tensorize_space(member, each, device=device) for member, each in zip(space, x, strict=True))
    shape = (1,) if isinstance(space, spaces.Discrete) else space.shape
    if not isinstance(x, Tensor):
        dtype = torch.float32 if isinstance(space, spaces.Box) else torch.int32
        x = torch.as_tensor(np.asarray(x), dtype=dtype, device=config.torch.parse_device(device))
    return x.reshape(-1, *(shape or ()))


def untensorize_space(space: gymnasium.Space | None, x: Any, *, squeeze_batch_dimension: bool = True) -> Any:
    """The inverse of `tensorize_space`, as arrays; squeeze_batch_dimension: a batch of one becomes a single value."""
    if space is None or x is None:
        return None
    options = {"squeeze_batch_dimension": squeeze_batch_dimension}
    if isinstance(space, spaces.Dict):
        return {key: untensorize_space(member, x[key], **options) for key, member in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(untensorize_space(member, each, **options) for member, each in zip(space, x, strict=True))
    array = (x.float() if x.dtype == torch.bfloat16 else x).detach().cpu().numpy().astype(space.dtype)
    single = squeeze_batch_dimension and len(array) == 1
    if isinstance(space, spaces.Discrete):
        return array.item() if single else array.reshape(-1, 1)
    return array.reshape(space.shape or ()) if single else array.reshape(-1, *(space.shape or ()))


def flatten_tensorized_space(x: Any) -> Tensor | None:
    """Values of a space, as tensors, in one tensor (batch, size)."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        return x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
    members = [x[key] for key in sorted(x)] if isinstance(x, dict) else x
    return torch.cat([each for each in map(flatten_tensorized_space, members) if each is not None], -1)


def unflatten_tensorized_space(space: gymnasium.Space | None, x: Tensor | None) -> Any:
    """The inverse of `flatten_tensorized_space`."""
    if space is None or x is None:
        return None
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys: Any = sorted(space.keys()) if isinstance(space, spaces.Dict) else range(len(space))
        sizes = [compute_space_size(space[key], occupied_size=True) for key in keys]
        parts = [
            unflatten_tensorized_space(space[key], part) for key, part in zip(keys, x.split(sizes, -1), strict=True)
        ]
        return dict(zip(keys, parts, strict=True)) if isinstance(space, spaces.Dict) else parts
    return x.reshape(-1, *((1,) if isinstance(space, spaces.Discrete) else space.shape or ()))


def sample_space(
    space: gymnasium.Space | None,
    *,
    batch_size: int = 1,
    backend: Literal["numpy", "native"] = "numpy",
    device: str | torch.device | None = None,
) -> Any:
    """Random values of a space, new ones in every call: arrays or tensors (`native`), (batch_size, *shape)."""
    if space is None:
        return None
    if backend not in ("numpy", "native"):
        raise SpaceError(f"sample_space: backend={backend!r} is unknown; use numpy or native")
    options: dict[str, Any] = {"batch_size": batch_size, "backend": backend, "device": device}
    if isinstance(space, spaces.Dict):
        return {key: sample_space(member, **options) for key, member in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample_space(member, **options) for member in space)
    drawn = np.stack([np.asarray(space.sample()).reshape(space.shape or (1,)) for _ in range(batch_size)])
    return drawn if backend == "numpy" else torch.from_numpy(drawn).to(config.torch.parse_device(device))
