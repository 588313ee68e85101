"""Encodes and decodes a run's state except replay: arrays in safetensors, everything else in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from offbeat.errors import CheckpointError
from offbeat.replay.chunkfile import DTYPES, little_endian
from offbeat.types import Array

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_FLOAT = "$float"


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a run at one step.

    arrays: networks, optimisers, normalisers, anything large. values: JSON, such as counters and random streams. NaN,
    infinities and integers of any size are preserved; tuples become lists. notes: JSON that describes the run instead
    of its state (config, versions, times, lengths of log files); the digest does not include them.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    ordered = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    for name, array in ordered.items():
        if array.dtype.name not in DTYPES:
            raise CheckpointError(
                f"arrays[{name!r}] is {array.dtype}, which a checkpoint cannot hold; use one of {', '.join(DTYPES)}"
            )
    return bytes(safetensors.numpy.save(ordered))


def decode_arrays(data: bytes, where: str) -> dict[str, Array]:
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{where} is not a safetensors file of plain arrays: {error}") from error
    return {str(name): array for name, array in arrays.items()}


def to_json(value: Any) -> bytes:
    """Canonical JSON: the same value always gives the same bytes."""
    try:
        plain = _plain(value, "")
    except RecursionError as error:
        raise CheckpointError("the state is nested too deeply, or contains itself; flatten it") from error
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def from_json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data, object_hook=_decode_float, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not valid JSON: {error}") from error


def logical_parts(snapshot: Snapshot) -> list[bytes]:
    """The snapshot's content in a fixed order, for the digest: values, then each array's name, dtype, shape, bytes."""
    parts = [to_json(snapshot.values)]
    for name in sorted(snapshot.arrays):
        array = np.asarray(snapshot.arrays[name])
        parts.append(to_json([name, array.dtype.name, list(array.shape)]))
        parts.append(array.astype(little_endian(array.dtype.name), copy=False).tobytes())
    return parts


def _plain(value: Any, path: str) -> Any:
    """Converts to types that JSON preserves; CheckpointError for anything that JSON would change."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _FLOAT:
                raise CheckpointError(
                    f"{path or 'the state'} has a key {key!r}; keys must be strings, and not {_FLOAT!r}"
                )
        return {key: _plain(entry, f"{path}.{key}" if path else key) for key, entry in value.items()}
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which JSON cannot hold; use numbers, strings, lists and dictionaries, "
        "and put arrays among the snapshot's arrays"
    )


def _decode_float(entry: dict[str, Any]) -> Any:
    """Converts {"$float": "nan"} to the float, as `_plain` encodes it; returns other objects unchanged."""
    if _FLOAT in entry:
        name = entry[_FLOAT]
        if len(entry) != 1 or not isinstance(name, str) or name not in _NOT_FINITE:
            raise ValueError(f"{entry!r:.60} is not a float")
        return _NOT_FINITE[name]
    return entry


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
