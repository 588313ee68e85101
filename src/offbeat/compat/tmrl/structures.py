"""Nested values as JSON and arrays, and back. Nothing is pickled: reading a file or a message executes nothing.

A structure is JSON that mirrors the value: ["dict", [[key, node], ...]], ["list", [node, ...]], ["tuple", ...],
["literal", value], or a leaf, whose array stands in a list beside it: ["array"], ["tensor"], ["scalar"] (NumPy),
["bool"], ["int"], ["float"] (Python).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.errors import CheckpointError, UsageError
from offbeat.replay.chunkfile import DTYPES
from offbeat.run.snapshot import decode_arrays, encode_arrays, from_json, to_json
from offbeat.types import Array

_STRUCTURE = "structure"
_NUMBERS: dict[str, tuple[type, str]] = {"bool": (bool, "bool"), "int": (int, "int64"), "float": (float, "float64")}
_BRAIN_FLOAT = "bfloat16"
"""NumPy has no such dtype: its bits are stored as int16."""
_DEEPEST = 100


def flatten(value: Any, where: str, *, columns: bool = False) -> tuple[Any, list[Array]]:
    """The structure of a value and its leaves' arrays. UsageError names the part that is neither.

    where: what the value is called in errors. columns: Python numbers become leaves, so that samples with other numbers
    have the same structure; otherwise they are literals.
    """
    arrays: list[Array] = []
    return _node(value, where, arrays, columns, 0), arrays


def _node(value: Any, where: str, arrays: list[Array], columns: bool, depth: int) -> Any:
    if depth > _DEEPEST:
        raise UsageError(f"{where} is nested more than {_DEEPEST} levels deep, or contains itself; flatten it")
    if value is None or isinstance(value, str):
        return ["literal", value]
    if type(value) in (bool, int, float):
        if not columns or (type(value) is int and abs(value) >= 2**63):
            return ["literal", value]
        kind = type(value).__name__
        arrays.append(np.asarray(value, _NUMBERS[kind][1]))
        return [kind]
    if isinstance(value, np.ndarray | np.generic):
        return _array(value, where, arrays)
    if (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        return _tensor(value, torch, where, arrays)
    if isinstance(value, Mapping):
        return ["dict", [_entry(item, where, arrays, columns, depth) for item in value.items()]]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        parts = enumerate(value)
        return [kind, [_node(part, f"{where}[{index}]", arrays, columns, depth + 1) for index, part in parts]]
    raise _unsupported(where, type(value).__name__)


def _entry(item: tuple[Any, Any], where: str, arrays: list[Array], columns: bool, depth: int) -> list[Any]:
    key, part = item
    if key is not None and not isinstance(key, str | bool | int | float):
        raise _unsupported(f"the key {key!r:.40} of {where}", type(key).__name__)
    return [key, _node(part, f"{where}[{key!r}]", arrays, columns, depth + 1)]


def _array(value: Any, where: str, arrays: list[Array]) -> list[str]:
    if value.dtype.name not in DTYPES:
        raise _unsupported(where, f"NumPy array of {value.dtype}")
    arrays.append(np.array(value))
    return ["scalar" if isinstance(value, np.generic) else "array"]


def _tensor(value: Any, torch: Any, where: str, arrays: list[Array]) -> list[str]:
    plain = value.detach().to("cpu", copy=True).contiguous()
    if plain.dtype == torch.bfloat16:
        arrays.append(plain.view(torch.int16).numpy())
        return ["tensor", _BRAIN_FLOAT]
    if str(plain.dtype).removeprefix("torch.") not in DTYPES or plain.layout != torch.strided:
        raise _unsupported(where, f"tensor of {plain.dtype}")
    arrays.append(plain.numpy())
    return ["tensor"]


def _unsupported(where: str, kind: str) -> UsageError:
    return UsageError(
        f"{where} is a {kind}, which is neither sent nor saved, because nothing is pickled; use numbers, strings, "
        "None, lists, tuples, dictionaries, NumPy arrays and tensors"
    )


def rebuild(structure: Any, arrays: Sequence[Array], where: str) -> Any:
    """The inverse of `flatten`. CheckpointError where structure and arrays do not fit."""
    rest = iter(arrays)
    try:
        value = _value(structure, rest)
    except (StopIteration, RuntimeError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{where} does not have the structure that it declares") from error
    if next(rest, None) is not None:
        raise CheckpointError(f"{where} has more arrays than its structure names")
    return value


def _value(node: Any, arrays: Iterator[Array]) -> Any:
    kind = node[0]
    if kind == "literal":
        return node[1]
    if kind == "dict":
        return {key: _value(part, arrays) for key, part in node[1]}
    if kind in ("list", "tuple"):
        parts = [_value(part, arrays) for part in node[1]]
        return parts if kind == "list" else tuple(parts)
    array = np.array(next(arrays))  # a copy of its own, which can be written to
    if kind == "array":
        return array
    if kind == "tensor":
        import torch

        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if node[1:] == [_BRAIN_FLOAT] else tensor
    if kind == "scalar":
        return array[()]
    return _NUMBERS[kind][0](array.item()) if kind in _NUMBERS else _unknown(kind)


def _unknown(kind: Any) -> Any:
    raise ValueError(f"{kind!r:.40} is no kind of node")


def encode(value: Any, where: str) -> bytes:
    """A value as one safetensors file."""
    structure, arrays = flatten(value, where)
    text = np.frombuffer(to_json(structure), np.uint8)
    return encode_arrays({_STRUCTURE: text, **{str(index): array for index, array in enumerate(arrays)}})


def decode(data: bytes, where: str) -> Any:
    arrays = decode_arrays(data, where)
    text = arrays.pop(_STRUCTURE, None)
    if text is None or text.dtype != np.uint8 or arrays.keys() != {str(index) for index in range(len(arrays))}:
        raise CheckpointError(f"{where} is a safetensors file of something else: it has no {_STRUCTURE!r}")
    ordered = [arrays[str(index)] for index in range(len(arrays))]
    return rebuild(from_json(text.tobytes(), where), ordered, where)
