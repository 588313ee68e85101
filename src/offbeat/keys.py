"""The flat keys of dataclasses of settings: one for each setting, and those of the kinds of a union."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from offbeat import flat
from offbeat.coercion import NONE, alternatives, text_of
from offbeat.ranges import range_words


@dataclass(frozen=True)
class Setting:
    """One flat key: its type, default, range and help.

    kinds: for a union, each kind's dataclass (None for the kind `none`). union, defaults: for a field of a union's
    kinds, the union's key, and the default of each kind that has the field. title: its section of `--help`, if it has
    one of its own.
    """

    name: str
    hint: Any
    default: Any
    help: str
    limits: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[str, type | None] = field(default_factory=dict)
    union: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    title: str | None = None

    @property
    def of(self) -> tuple[str, ...]:
        return tuple(self.defaults)

    @property
    def range(self) -> str:
        return range_words(self.limits)

    @property
    def default_words(self) -> str:
        """The default as a flag would be given it, and that of each kind where theirs differ."""
        texts = {kind: text_of(default) for kind, default in self.defaults.items()}
        if len(set(texts.values())) > 1:
            return ", ".join(f"{text} for {kind}" for kind, text in texts.items())
        return text_of(self.default)


@functools.cache
def settings_of(owner: type) -> tuple[Setting, ...]:
    """The flat keys of a dataclass, in the order of its fields."""
    return tuple(keys_of(owner, expanded(owner, flat.defaults(owner))))


def keys_of(owner: type, defaults: Mapping[str, Any]) -> Iterator[Setting]:
    """The flat keys of a dataclass, with these defaults."""
    for leaf in flat.leaves(owner):
        kinds = kinds_of(leaf.hint)
        hint = Literal[tuple(kinds)] if kinds else leaf.hint
        words, limits = leaf.metadata["help"], leaf.metadata["limits"]
        yield Setting(leaf.name, hint, defaults[leaf.name], words, limits, kinds=kinds, title=leaf.title)
        for each in _fields_of_kinds(leaf.name, kinds, defaults):
            yield dataclasses.replace(each, title=leaf.title)


def _fields_of_kinds(union: str, kinds: Mapping[str, type | None], values: Mapping[str, Any]) -> Iterator[Setting]:
    """The fields of a union's kinds as flat keys, one for all kinds that have it. values: the union's own default."""
    found: dict[str, Setting] = {}
    for kind, member in kinds.items():
        for one in settings_of(member) if member is not None else ():
            if one.kinds:
                raise TypeError(f"{union}: a union inside a union has no flat keys")
            name = f"{union}_{one.name}"
            own = values[name] if kind == values[union] else one.default
            known = found.get(name) or dataclasses.replace(one, name=name, default=values.get(name, own), union=union)
            found[name] = dataclasses.replace(known, defaults={**known.defaults, kind: own})
    yield from found.values()


def kinds_of(hint: Any) -> dict[str, type | None]:
    """Kind to dataclass for a dataclass or a union of them; empty for every other type."""
    members = alternatives(hint)
    if not any(dataclasses.is_dataclass(member) for member in members):
        return {}
    return {kind_of(member): None if member is types.NoneType else member for member in members}


def kind_of(member: type) -> str:
    if member is types.NoneType:
        return NONE
    return str(getattr(member, "kind", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", member.__name__).lower()))


def flat_values(instance: Any) -> dict[str, Any]:
    """The flat keys of a dataclass instance with their values."""
    return expanded(type(instance), flat.values(instance))


def expanded(owner: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values with each union as its kind and the fields of its kind."""
    found: dict[str, Any] = {}
    for leaf in flat.leaves(owner):
        value = values[leaf.name]
        if not kinds_of(leaf.hint):
            found[leaf.name] = value
            continue
        found[leaf.name] = kind_of(type(value))
        inner = flat_values(value) if value is not None else {}
        found |= {f"{leaf.name}_{name}": entry for name, entry in inner.items()}
    return found
