"""Flat keys over settings in groups.

A config is a dataclass of settings (`ranges.setting`) and of groups of them (`ranges.group`). Users write flat keys
(`hidden`); code reads groups (`config.networks.hidden`). Here one becomes the other.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FlatSetting:
    """One setting of a config: its flat key, the groups on the way to it, its type hint, and its field's metadata.

    title: the section of `--help` that it belongs to, if its field or its group names one.
    """

    name: str
    path: tuple[str, ...]
    hint: Any
    metadata: Mapping[str, Any]
    title: str | None


def leaves(owner: type) -> tuple[FlatSetting, ...]:
    """The settings of a config class, in the order of its fields; groups surface without a prefix."""
    if owner not in _LEAVES:
        _LEAVES[owner] = tuple(_leaves(owner, ()))
    return _LEAVES[owner]


_LEAVES: dict[type, tuple[FlatSetting, ...]] = {}


def _leaves(owner: type, path: tuple[str, ...]) -> Iterator[FlatSetting]:
    hints = typing.get_type_hints(owner)
    for each in dataclasses.fields(owner):
        if "group" in each.metadata:
            yield from _leaves(each.metadata["group"], (*path, each.name))
        else:
            title = each.metadata["title"] or getattr(owner, "title", None)
            yield FlatSetting(each.name, path, hints[each.name], each.metadata, title)


def values(config: Any) -> dict[str, Any]:
    """Flat key to value, for every setting of a config."""
    return {leaf.name: functools.reduce(getattr, (*leaf.path, leaf.name), config) for leaf in leaves(type(config))}


def defaults(owner: type) -> dict[str, Any]:
    """Flat key to default, for every setting of a config class."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(owner):
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        found |= values(default) if "group" in each.metadata else {each.name: default}
    return found


def value(config: Any, name: str) -> Any:
    """The value of one flat key; AttributeError if the config has no such setting."""
    for leaf in leaves(type(config)):
        if leaf.name == name:
            return functools.reduce(getattr, (*leaf.path, name), config)
    raise AttributeError(f"{type(config).__name__} has no setting {name}")


def overlay(config: Any, changes: Mapping[str, Any]) -> Any:
    """The config with other values for some flat keys, unchecked: for values that a run computes itself."""
    found = copy.copy(config)
    for each in dataclasses.fields(config):
        if "group" in each.metadata:
            object.__setattr__(found, each.name, overlay(getattr(config, each.name), changes))
        elif each.name in changes:
            object.__setattr__(found, each.name, changes[each.name])
    return found
