"""The final info of an episode: its success flag, one row of a VectorEnv's infos, and the part that can be sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SUCCESS_KEYS = ("is_success", "success")
"""Gymnasium-Robotics and Stable-Baselines3 use is_success, Meta-World and ManiSkill success; the first found counts."""
MAX_ARRAY_SIZE = 1_000
"""Larger arrays are not sent from a collector."""
MAX_DEPTH = 4
"""Most levels of nested lists and mappings that are sent from a collector."""

_LEFT_OUT = object()


def success_of(info: Any) -> bool | None:
    """Whether the episode with this final info was a success; None without a success flag.

    A flag is True, False, 1 or 0, as a number or an array of size 1; other values are ignored.
    """
    if not isinstance(info, Mapping):
        return None
    for key in SUCCESS_KEYS:
        if key in info and isinstance(info[key], bool | int | float | np.generic | np.ndarray):
            value = np.asarray(info[key])
            if value.size == 1 and value.dtype.kind in "biuf" and value.item() in (0, 1):
                return bool(value.item())
    return None


def as_mapping(info: Any) -> Mapping[str, Any]:
    """A shallow copy of info, because an environment may reuse the object; {} if it is not a mapping."""
    return dict(info) if isinstance(info, Mapping) else {}


def row_of(infos: Any, row: int) -> dict[str, Any]:
    """The info of one environment from a VectorEnv's infos, where `_key` marks the environments that have a value."""
    if not isinstance(infos, Mapping):  # one info per environment, as before Gymnasium 1.0
        own = infos[row] if isinstance(infos, list | tuple | np.ndarray) and row < len(infos) else None
        return dict(own) if isinstance(own, Mapping) else {}
    found: dict[str, Any] = {}
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        present = infos.get(f"_{key}")
        if present is not None and not present[row]:
            continue
        if isinstance(values, Mapping):
            found[key] = row_of(values, row)
        elif isinstance(values, list | tuple | np.ndarray) and np.ndim(values) and row < len(values):
            found[key] = values[row]
    return found


def portable(info: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an info that a collector sends: numbers, text, small arrays, and lists and mappings of them."""
    found = _portable(info, MAX_DEPTH)
    assert isinstance(found, dict)
    return found


def _portable(value: Any, levels: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value if value.dtype.kind in "biufU" and value.size <= MAX_ARRAY_SIZE else _LEFT_OUT
    if not levels:
        return _LEFT_OUT
    if isinstance(value, Mapping):
        parts = {key: _portable(part, levels - 1) for key, part in value.items() if isinstance(key, str)}
        return {key: part for key, part in parts.items() if part is not _LEFT_OUT}
    if isinstance(value, list | tuple) and len(value) <= MAX_ARRAY_SIZE:
        found = [_portable(part, levels - 1) for part in value]
        return _LEFT_OUT if any(part is _LEFT_OUT for part in found) else found
    return _LEFT_OUT
