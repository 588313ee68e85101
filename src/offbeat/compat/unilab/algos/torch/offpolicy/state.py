"""A learner's `get_state_dict()` as one array and back: safetensors and JSON, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.errors import CheckpointError, UsageError
from offbeat.learn.torch import copy_into
from offbeat.run.snapshot import decode_arrays, encode_arrays, from_json, to_json
from offbeat.types import Array

_TREE = "tree"


def pack_state(state: Any) -> Array:
    """Bytes (n,): every tensor by its path, and the tree that they stand in."""
    tensors: dict[str, Array] = {}
    tree = to_json(_described(state, "state", tensors))
    return np.frombuffer(encode_arrays({**tensors, _TREE: np.frombuffer(tree, np.uint8)}), np.uint8).copy()


def unpack_state(data: Array) -> Any:
    """The inverse of `pack_state`; tensors are on the CPU."""
    arrays = decode_arrays(np.asarray(data, np.uint8).tobytes(), "the learner's state")
    tree = from_json(arrays.pop(_TREE).tobytes(), "the tree of the learner's state")
    return _rebuilt(tree, arrays)


def _described(value: Any, path: str, tensors: dict[str, Array]) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        tensors[path] = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        return {"tensor" if isinstance(value, Tensor) else "array": path}
    if isinstance(value, Mapping):
        items = [[_key(key, path), _described(each, f"{path}.{key}", tensors)] for key, each in value.items()]
        return {"items": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_described(each, f"{path}.{index}", tensors) for index, each in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise UsageError(
        f"get_state_dict() holds a {type(value).__name__} at {path}, which a checkpoint cannot hold without pickle: "
        "return tensors, numbers, text, None, and lists and dicts of them"
    )


def _key(key: Any, path: str) -> Any:
    if isinstance(key, str | int):
        return key
    raise UsageError(f"get_state_dict() has a key {key!r} at {path}, but keys must be text or whole numbers")


def _rebuilt(tree: Any, arrays: Mapping[str, Array]) -> Any:
    ((kind, content),) = tree.items()
    if kind in ("tensor", "array"):
        array = np.array(arrays[content])
        return array if kind == "array" else torch.from_numpy(array)
    if kind == "items":
        return {key: _rebuilt(each, arrays) for key, each in content}
    if kind in ("list", "tuple"):
        entries = [_rebuilt(each, arrays) for each in content]
        return entries if kind == "list" else tuple(entries)
    return content


def copy_learned(learner: str, tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Gives a learner's tensors the values that were saved; one of other sizes is refused before anything is copied."""
    mine, theirs = ({name: tuple(each.shape) for name, each in them.items()} for them in (tensors, saved))
    if mine != theirs:
        name = next(name for name in (*mine, *theirs) if mine.get(name) != theirs.get(name))
        raise CheckpointError(
            f"the saved state does not fit this {learner}: {name} is {theirs.get(name, 'missing')} there and "
            f"{mine.get(name, 'missing')} here; make the learner with the sizes that it was saved with"
        )
    copy_into(tensors, {name: each.cpu().numpy() for name, each in saved.items()})


def restore_learner(learner: Any, state: Any) -> None:
    """Gives a learner back what `get_state_dict()` returned: by `load_state_dict`, or part by part under its names."""
    if callable(getattr(learner, "load_state_dict", None)):
        learner.load_state_dict(state)
        return
    if missing := cannot_restore(learner, state):
        raise CheckpointError(
            f"{type(learner).__name__} cannot be resumed: its get_state_dict() has {missing}, for which it has no "
            "attribute; give it a method load_state_dict(state)"
        )
    for name, value in state.items():
        part = getattr(learner, name)
        if callable(getattr(part, "load_state_dict", None)):
            part.load_state_dict(value)
        elif isinstance(part, Tensor):
            with torch.no_grad():
                part.copy_(value)
        else:
            setattr(learner, name, value)


def cannot_restore(learner: Any, state: Any) -> str:
    """The parts of a state that a learner without `load_state_dict` has no attribute for; "" where it has all."""
    if callable(getattr(learner, "load_state_dict", None)):
        return ""
    if not isinstance(state, Mapping):
        return f"a {type(state).__name__} instead of a dict"
    return ", ".join(str(name) for name in state if not hasattr(learner, str(name)))
