"""Limits of Gymnasium spaces, and conversion of their values to tensors (batch, size) of a framework and back."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from offbeat.compat.skrl.arrays import Arrays
from offbeat.compat.skrl.utils.spaces.sizes import compute_space_size, leaves
from offbeat.errors import SpaceError


class SpaceFunctions:
    """The functions of `utils.spaces`, with the arrays of one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def compute_space_limits(
        self,
        space: gymnasium.Space | None,
        *,
        occupied_size: bool = False,
        device: Any = None,
        none_if_unbounded: Literal["both", "below", "above", "any"] | None = None,
    ) -> tuple[Any, Any]:
        """Low and high limits (size,) of a space; only Box spaces have some, others are -inf and inf.

        none_if_unbounded: a limit that is infinite everywhere is None: both if both are, the low one (below), the high
        one (above), or each (any).
        """
        if space is None:
            return None, None
        low, high = [], []
        for _, each in leaves(space):
            size = compute_space_size(each, occupied_size=occupied_size)
            free = np.full((2, size), ((-np.inf,), (np.inf,)))
            own = (each.low, each.high) if isinstance(each, spaces.Box) else free
            low.append(own[0].reshape(-1).astype(np.float32))
            high.append(own[1].reshape(-1).astype(np.float32))
        found = [np.concatenate(each) for each in (low, high)]
        unbounded = [bool(np.isinf(each).all()) for each in found]
        if none_if_unbounded == "both":
            unbounded = [all(unbounded)] * 2
        drop = {
            "below": (True, False),
            "above": (False, True),
            "both": (True, True),
            "any": (True, True),
            None: (False,) * 2,
        }
        without = [is_free and may for is_free, may in zip(unbounded, drop[none_if_unbounded], strict=True)]
        where = self._arrays.device(device)
        limits = [None if none else self._arrays.put(each, where) for none, each in zip(without, found, strict=True)]
        return limits[0], limits[1]

    def tensorize_space(self, space: gymnasium.Space | None, x: Any, *, device: Any = None) -> Any:
        """Values of a space as tensors (batch, *shape), in the same structure; None for None.

        device: None leaves tensors where they are, and makes new ones on the default device.
        """
        if space is None or x is None:
            return None
        if isinstance(space, spaces.Dict):
            return {key: self.tensorize_space(member, x[key], device=device) for key, member in space.items()}
        if isinstance(space, spaces.Tuple):
            pairs = zip(space, x, strict=True)
            return tuple(self.tensorize_space(member, each, device=device) for member, each in pairs)
        shape = (1,) if isinstance(space, spaces.Discrete) else space.shape
        if not isinstance(x, self._arrays.kind):
            dtype = np.float32 if isinstance(space, spaces.Box) else np.int32
            x = self._arrays.put(np.asarray(x, dtype), self._arrays.device(device))
        elif device is not None:
            x = self._arrays.move(x, self._arrays.device(device))
        return x.reshape(-1, *(shape or ()))

    def untensorize_space(self, space: gymnasium.Space | None, x: Any, *, squeeze_batch_dimension: bool = True) -> Any:
        """The inverse of `tensorize_space`, as NumPy arrays. squeeze_batch_dimension: one row becomes one value."""
        if space is None or x is None:
            return None
        options = {"squeeze_batch_dimension": squeeze_batch_dimension}
        if isinstance(space, spaces.Dict):
            return {key: self.untensorize_space(member, x[key], **options) for key, member in space.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self.untensorize_space(member, each, **options) for member, each in zip(space, x, strict=True))
        array = self._arrays.get(x).astype(space.dtype)
        single = squeeze_batch_dimension and len(array) == 1
        if isinstance(space, spaces.Discrete):
            return array.item() if single else array.reshape(-1, 1)
        return array.reshape(space.shape or ()) if single else array.reshape(-1, *(space.shape or ()))

    def flatten_tensorized_space(self, x: Any) -> Any:
        """Values of a space, as tensors, in one tensor (batch, size)."""
        if x is None:
            return None
        if isinstance(x, self._arrays.kind):
            return x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
        members = [x[key] for key in sorted(x)] if isinstance(x, dict) else x
        flat = [each for each in map(self.flatten_tensorized_space, members) if each is not None]
        return self._arrays.concatenate(flat, -1)

    def unflatten_tensorized_space(self, space: gymnasium.Space | None, x: Any) -> Any:
        """The inverse of `flatten_tensorized_space`."""
        if space is None or x is None:
            return None
        if isinstance(space, spaces.Dict | spaces.Tuple):
            keys: Any = sorted(space.keys()) if isinstance(space, spaces.Dict) else range(len(space))
            sizes = [compute_space_size(space[key], occupied_size=True) for key in keys]
            stops = np.cumsum(sizes).tolist()
            parts = [
                self.unflatten_tensorized_space(space[key], x[..., stop - size : stop])
                for key, size, stop in zip(keys, sizes, stops, strict=True)
            ]
            return dict(zip(keys, parts, strict=True)) if isinstance(space, spaces.Dict) else parts
        return x.reshape(-1, *((1,) if isinstance(space, spaces.Discrete) else space.shape or ()))

    def sample_space(
        self,
        space: gymnasium.Space | None,
        *,
        batch_size: int = 1,
        backend: Literal["numpy", "native"] = "numpy",
        device: Any = None,
    ) -> Any:
        """Random values of a space, new ones in every call: arrays or tensors (`native`), (batch_size, *shape)."""
        if space is None:
            return None
        if backend not in ("numpy", "native"):
            raise SpaceError(f"sample_space: backend={backend!r} is unknown; use numpy or native")
        options: dict[str, Any] = {"batch_size": batch_size, "backend": backend, "device": device}
        if isinstance(space, spaces.Dict):
            return {key: self.sample_space(member, **options) for key, member in space.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self.sample_space(member, **options) for member in space)
        drawn = np.stack([np.asarray(space.sample()).reshape(space.shape or (1,)) for _ in range(batch_size)])
        return drawn if backend == "numpy" else self._arrays.put(drawn, self._arrays.device(device))
