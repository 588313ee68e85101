"""The state of a user's objects as arrays and JSON, and back into objects of the same classes. No pickle.

What an object holds is found through its attributes: numbers, text, arrays, tensors, containers of them, random
generators, everything with `state_dict` and `load_state_dict` (torch modules and optimisers), replay buffers, and
objects that hold such things in turn. Spaces, environments, functions and classes are not state.
"""

from __future__ import annotations

import enum
import functools
import random
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch

from offbeat.compat.metarl.envs.env_spec import EnvSpec
from offbeat.compat.metarl.replay_buffer.path_buffer import PathBuffer
from offbeat.errors import CheckpointError
from offbeat.replay.chunkfile import DTYPES
from offbeat.replay.shard import Shard
from offbeat.run.compatibility import backend_of
from offbeat.run.snapshot import Snapshot
from offbeat.run.training import Training
from offbeat.types import Array

_NO_STATE = (
    *(type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, functools.partial),
    *(gymnasium.Space, gymnasium.Env, EnvSpec, enum.Enum, torch.device, torch.dtype, np.dtype),
)
_OF_BUFFERS = {"_capacity", "_rng", "_shard", "_paths", "_added"}


def _plain(value: Any) -> bool:
    """Whether JSON holds it as it is."""
    if isinstance(value, list):
        return all(_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _has_state(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)  # a frozen dataclass holds settings
    return not isinstance(value, _NO_STATE) and not (parameters is not None and parameters.frozen)


@dataclass
class Encoder:
    """Encodes values as tagged JSON lists; arrays are put aside by name.

    buffers: replay buffers, whose rows a checkpoint keeps in segments. left_out: attributes that cannot be saved.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    buffers: list[PathBuffer] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _seen: dict[int, Any] = field(default_factory=dict)

    @property
    def shards(self) -> dict[str, Shard]:
        return {f"buffer{index}": each.shard for index, each in enumerate(self.buffers) if each.shard is not None}

    def encode(self, value: Any, path: str) -> list[Any]:
        if isinstance(value, np.generic):
            value = value.item()
        if _plain(value):
            return ["json", value]
        if not _has_state(value):
            return ["none"]
        if id(value) in self._seen:
            return ["same"]
        self._seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, list | tuple | deque | set | frozenset):
            parts = [self.encode(each, f"{path}/{index}") for index, each in enumerate(value)]
            return [type(value).__name__ if type(value) in _CONTAINERS else "list", parts]
        if isinstance(value, dict):
            return self._dict(value, path)
        if isinstance(value, np.ndarray | torch.Tensor):
            return self._array(value, path)
        return self._object(value, path)

    def _dict(self, value: dict[Any, Any], path: str) -> list[Any]:
        if not all(_plain(key) for key in value):
            return self._leave_out(value, path)
        return ["dict", [[key, self.encode(each, f"{path}/{key}")] for key, each in value.items()]]

    def _array(self, value: Any, path: str) -> list[Any]:
        tensor = isinstance(value, torch.Tensor)
        if tensor and value.dtype == torch.bfloat16:
            return self._leave_out(value, path)
        array = value.detach().cpu().numpy() if tensor else value
        if array.dtype.name not in DTYPES:
            return self._leave_out(value, path)
        self.arrays[path] = np.array(array)
        return ["tensor" if tensor else "array", path]

    def _object(self, value: Any, path: str) -> list[Any]:
        if isinstance(value, PathBuffer):
            self.buffers.append(value)
            own = {name: each for name, each in vars(value).items() if name not in _OF_BUFFERS}
            return ["buffer", len(self.buffers) - 1, value.saved_values(), self._attributes(own, path)]
        if isinstance(value, Training):
            saved = value.snapshot()
            names = {f"{path}/{name}": array for name, array in saved.arrays.items()}
            self.arrays |= names
            notes = {name: saved.notes[name] for name in ("algorithm", "spec", "pending", "logged")}
            notes["config"] = {"backend": backend_of(saved.notes)}  # the rest is the script's, and holds its functions
            return ["training", path, dict(saved.values), notes]
        for kind, (read, _) in _RANDOM.items():
            if isinstance(value, kind):
                return ["random", self.encode(read(value), path)]
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return ["state_dict", self.encode(value.state_dict(), path)]
        if hasattr(value, "__dict__"):
            return ["object", self._attributes(vars(value), path)]
        return self._leave_out(value, path)

    def _attributes(self, values: dict[str, Any], path: str) -> dict[str, Any]:
        return {name: self.encode(each, f"{path}/{name}") for name, each in values.items()}

    def _leave_out(self, value: Any, path: str) -> list[Any]:
        self.left_out.append(f"{path.replace('/', '.')} ({type(value).__name__})")
        return ["none"]


@dataclass
class Decoder:
    """Gives objects of the same classes the state that an Encoder has written. arrays: by name.

    buffers: replay buffers that are empty and ready for their rows; `finish` continues after these are loaded.
    """

    arrays: dict[str, Array]
    buffers: list[tuple[PathBuffer, int, dict[str, Any]]] = field(default_factory=list)

    @property
    def shards(self) -> dict[str, Shard]:
        return {f"buffer{index}": each.shard for each, index, _ in self.buffers if each.shard is not None}

    def finish(self) -> None:
        for buffer, _, values in self.buffers:
            buffer.restore(values)

    def decode(self, value: Any, saved: list[Any], path: str) -> Any:
        """The saved value; containers, tensors and objects that exist are changed in place and returned."""
        tag = saved[0]
        if tag in ("none", "same"):
            return value
        if tag == "json":
            if isinstance(value, list) and isinstance(saved[1], list):
                value[:] = saved[1]
                return value
            return saved[1]
        if tag in ("array", "tensor"):
            return self._array(value, tag, self.arrays[saved[1]])
        if tag == "dict":
            return self._dict(value, saved[1], path)
        if tag in ("list", "tuple", "deque", "set", "frozenset"):
            return self._sequence(value, tag, saved[1], path)
        self._object(value, saved, path)
        return value

    def _array(self, value: Any, tag: str, array: Array) -> Any:
        if tag == "tensor":
            found = torch.from_numpy(np.array(array))
            if isinstance(value, torch.Tensor) and value.shape == found.shape:
                with torch.no_grad():
                    value.copy_(found)
                return value
            return found
        if isinstance(value, np.ndarray) and value.shape == array.shape and value.flags.writeable:
            value[...] = array
            return value
        return np.array(array)

    def _dict(self, value: Any, entries: list[Any], path: str) -> Any:
        before = value if isinstance(value, dict) else {}
        found = {key: self.decode(before.get(key), each, f"{path}/{key}") for key, each in entries}
        if not isinstance(value, dict):
            return found
        value.clear()
        value.update(found)
        return value

    def _sequence(self, value: Any, tag: str, parts: list[Any], path: str) -> Any:
        before = list(value) if isinstance(value, list | tuple | deque) else []
        before += [None] * (len(parts) - len(before))
        found = [
            self.decode(old, each, f"{path}/{i}") for i, (old, each) in enumerate(zip(before, parts, strict=False))
        ]
        if isinstance(value, list):
            value[:] = found
            return value
        if isinstance(value, deque):
            value.clear()
            value.extend(found)
            return value
        return _CONTAINER_NAMES[tag](found)

    def _object(self, value: Any, saved: list[Any], path: str) -> None:
        tag = saved[0]
        name = path.replace("/", ".")
        if value is None:
            raise CheckpointError(f"the checkpoint holds {name}, but here it is None; call setup with the same objects")
        if tag == "random":
            write = next(write for kind, (_, write) in _RANDOM.items() if isinstance(value, kind))
            write(value, self.decode(None, saved[1], path))
        elif tag == "state_dict":
            value.load_state_dict(self.decode(None, saved[1], path))
        elif tag == "training":
            prefix = f"{saved[1]}/"
            arrays = {each.removeprefix(prefix): self.arrays[each] for each in self.arrays if each.startswith(prefix)}
            value.restore(Snapshot(arrays, saved[2], saved[3]))
        elif tag == "buffer":
            if not isinstance(value, PathBuffer):
                raise CheckpointError(
                    f"the checkpoint holds {name} as a PathBuffer, but here it is a {type(value).__name__}"
                )
            value.prepare(saved[2])
            self.buffers.append((value, saved[1], saved[2]))
            self._attributes(value, saved[3], path)
        else:
            self._attributes(value, saved[1], path)

    def _attributes(self, owner: Any, entries: dict[str, Any], path: str) -> None:
        for name, each in entries.items():
            before = getattr(owner, name, None)
            after = self.decode(before, each, f"{path}/{name}")
            if after is not before:
                setattr(owner, name, after)


_CONTAINERS = (list, tuple, deque, set, frozenset)
_CONTAINER_NAMES: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in _CONTAINERS}


def _set_generator(value: Any, state: Any) -> None:
    value.bit_generator.state = state


_RANDOM: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    np.random.Generator: (lambda value: value.bit_generator.state, _set_generator),
    np.random.RandomState: (lambda value: value.get_state(legacy=False), lambda value, state: value.set_state(state)),
    random.Random: (lambda value: value.getstate(), lambda value, state: value.setstate(state)),
    torch.Generator: (lambda value: value.get_state(), lambda value, state: value.set_state(state)),
}
