"""Settings from anywhere: Python, YAML and the command line all become one checked `Config` here.

The dataclasses of `algorithms.configs` are walked by their type hints, so that a new setting or algorithm needs no
change here. Keys are flat: the run's and the algorithm's fields side by side. A union of dataclasses (temperature) is
one key for its kind and one per field of a kind (temperature, temperature_initial, temperature_value); a mapping with
`kind` and an instance say the same.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from offbeat import foreign_names, references
from offbeat.algorithms.configs import ALGORITHMS, Config, Run
from offbeat.coercion import (
    NONE,
    Mismatch,
    Spell,
    alternatives,
    beyond_int,
    coerce,
    lost,
    marker,
    plain,
    shown,
    suggestion,
    text_of,
    type_words,
)
from offbeat.errors import UsageError
from offbeat.ranges import check_range, range_words
from offbeat.yamltext import dump_yaml, load_yaml


@dataclass(frozen=True)
class Setting:
    """One flat key: its type, default, range and help.

    kinds: for a union, each kind's dataclass (None for the kind `none`). union, defaults: for a field of a union's
    kinds, the union's key, and the default of each kind that has the field.
    """

    name: str
    hint: Any
    default: Any
    help: str
    limits: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[str, type | None] = field(default_factory=dict)
    union: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

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
    return tuple(_settings_of(owner))


def _settings_of(owner: type) -> Iterator[Setting]:
    hints, defaults = typing.get_type_hints(owner), flat_values(owner())
    for each in dataclasses.fields(owner):
        kinds = _kinds(hints[each.name])
        hint = Literal[tuple(kinds)] if kinds else hints[each.name]
        yield Setting(each.name, hint, defaults[each.name], each.metadata["help"], each.metadata["limits"], kinds=kinds)
        yield from _fields_of_kinds(each.name, kinds, defaults)


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


def _kinds(hint: Any) -> dict[str, type | None]:
    """Kind to dataclass for a dataclass or a union of them; empty for every other type."""
    members = alternatives(hint)
    if not any(dataclasses.is_dataclass(member) for member in members):
        return {}
    return {_kind(member): None if member is types.NoneType else member for member in members}


def _kind(member: type) -> str:
    if member is types.NoneType:
        return NONE
    return str(getattr(member, "kind", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", member.__name__).lower()))


def flat_values(instance: Any) -> dict[str, Any]:
    """The flat keys of a dataclass instance with its values."""
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(type(instance))
    for each in dataclasses.fields(instance):
        value = getattr(instance, each.name)
        if not _kinds(hints[each.name]):
            values[each.name] = value
            continue
        values[each.name] = _kind(type(value))
        inner = flat_values(value) if value is not None else {}
        values.update({f"{each.name}_{name}": entry for name, entry in inner.items()})
    return values


# Reading: any mapping to checked flat values.


def read(settings: Sequence[Setting], mapping: Mapping[Any, Any], spell: Spell = str) -> dict[str, Any]:
    """Flat values of `mapping`, each of its setting's type and in its range. UsageError names the first wrong key."""
    known = {setting.name: setting for setting in settings}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if not isinstance(key, str) or key not in known:
            raise UsageError(_unknown("setting", key, known, spell))
        if known[key].kinds:
            values.update(_read_union(known[key], value, settings, spell))
        else:
            values[key] = _checked(known[key], value, spell)
    return values


def _read_union(union: Setting, value: Any, settings: Sequence[Setting], spell: Spell) -> dict[str, Any]:
    prefix = f"{union.name}_"
    if value is None:
        value = NONE
    if dataclasses.is_dataclass(value) and type(value) in union.kinds.values():
        entries = {"kind": _kind(type(value)), **flat_values(value)}
    elif isinstance(value, Mapping):
        entries = dict(value)
    else:
        entries = {"kind": value}
    names = {each.name.removeprefix(prefix): each for each in settings if each.union == union.name}
    values: dict[str, Any] = {}
    for key, entry in entries.items():
        if key == "kind":
            values[union.name] = _checked(union, entry, spell)
        elif isinstance(key, str) and key in names:
            values[prefix + key] = _checked(names[key], entry, spell)
        else:
            raise UsageError(f"{spell(union.name)}: " + _unknown("key", key, ["kind", *names], str))
    return values


def _checked(setting: Setting, value: Any, spell: Spell) -> Any:
    name = spell(setting.name)
    try:
        if (missing := lost(value)) is not None:
            raise UsageError(f"{name} was {missing} in Python, which no file can hold; give it again from Python")
        value = coerce(setting.hint, value)
    except RecursionError as error:
        raise UsageError(f"{name} contains itself or is nested too deeply; make it flatter") from error
    except Mismatch:
        if int in alternatives(setting.hint) and beyond_int(value):
            raise UsageError(f"{name}={shown(value)} is out of range: it must be less than 2^63") from None
        choices = [choice for member in alternatives(setting.hint) for choice in typing.get_args(member)]
        remedy = suggestion(value, [choice for choice in choices if isinstance(choice, str)])
        raise UsageError(f"{name}={shown(value)} is not {type_words(setting.hint)}{remedy}") from None
    check_range(name, value, setting.limits)
    return value


def _unknown(what: str, key: Any, known: Iterable[str], spell: Spell) -> str:
    known = list(known)
    if what == "setting" and isinstance(key, str) and (ours := other_name(key, known, spell)) is not None:
        return f"there is no setting {shown(key)}; {ours}"
    listing = f"; there is {', '.join(spell(name) for name in known)}"
    return f"there is no {what} {shown(key)}{suggestion(key, known, spell) or listing}"


def other_name(key: str, known: Iterable[str], spell: Spell = str) -> str | None:
    """What to do with a name that only other algorithms of ours, or other libraries, have."""
    name, known = key.lower().replace("-", "_"), list(known)
    owners = [each for each in ALGORITHMS if any(name == setting.name for setting in train_settings(each))]
    if owners and name not in known and name not in foreign_names.FOREIGN:
        return f"only {', '.join(owners)} ha{'s' if len(owners) == 1 else 've'} it: leave it out"
    return foreign_names.answer(name, known, spell)


# Making a Config, and taking it apart.


def algorithm_named(name: Any) -> Any:
    """The settings class of an algorithm, or UsageError with the closest name and the list."""
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name]
    nearest = foreign_names.ALGORITHMS.get(name.lower()) if isinstance(name, str) else None
    remedy = f"; the nearest is {nearest}" if nearest else suggestion(name, ALGORITHMS)
    raise UsageError(f"there is no algorithm {shown(name)}; there is {', '.join(ALGORITHMS)}{remedy}")


def train_settings(algorithm: str) -> tuple[Setting, ...]:
    """The keys that training with an algorithm takes: the run's, then its own."""
    return run_settings(algorithm) + own_settings(algorithm)


def own_settings(algorithm: str) -> tuple[Setting, ...]:
    """The algorithm's own keys, and `learning_rate` for all groups where each has a rate of its own."""
    owner = algorithm_named(algorithm)
    return settings_of(owner) + shared_rate(owner)


RATE = "learning_rate"


def shared_rate(owner: type) -> tuple[Setting, ...]:
    """The key `learning_rate`, where a settings class has rates of groups only; no field stands behind it."""
    rates = _group_rates(owner)
    if not rates:
        return ()
    names = ", ".join(each.name for each in rates)
    text = f"Sets {names} at once; one that is given by its own name wins."
    return (Setting(RATE, rates[0].hint, None, text, rates[0].limits),)


def _group_rates(owner: type) -> list[Setting]:
    return [each for each in settings_of(owner) if each.name.endswith(f"_{RATE}") and not each.union]


def spread_rate(owner: type, layers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The layers with `learning_rate` as the rates of the groups that the same layer does not name.

    A group that is fixed (the temperature may be) learns nothing, and so has no rate to set.
    """
    kinds = {key: value for layer in layers for key, value in layer.items()}
    groups = [each.name for each in _group_rates(owner) if kinds.get(each.name.removesuffix(f"_{RATE}")) != "fixed"]
    spread = []
    for layer in layers:
        shared = dict.fromkeys(groups, layer[RATE]) if groups and RATE in layer else {}
        spread.append({**shared, **{key: value for key, value in layer.items() if not (groups and key == RATE)}})
    return spread


def run_settings(algorithm: str) -> tuple[Setting, ...]:
    """The run's keys that mean something to an algorithm, with its own defaults."""
    owner = algorithm_named(algorithm)
    return tuple(
        dataclasses.replace(each, default=owner.run_defaults.get(each.name, each.default))
        for each in settings_of(Run)
        if each.name not in owner.without
    )


def build(algorithm: str, mapping: Mapping[str, Any]) -> Config:
    """The Config that flat keys describe, over the defaults. A key `algorithm` is allowed where it says the same."""
    settings = train_settings(algorithm)
    mapping = {key: value for key, value in mapping.items() if (key, value) != ("algorithm", algorithm)}
    if "algorithm" in mapping:
        raise UsageError(f"algorithm={shown(mapping['algorithm'])}, but these are to be settings of {algorithm}")
    return assemble(algorithm, read(settings, mapping))


def with_changes(config: Config, **changes: Any) -> Config:
    """The config with some flat keys changed; another kind of a union starts from its own defaults."""
    settings = train_settings(config.algorithm)
    current = flat_values(config.run) | flat_values(config.learner)
    return assemble(config.algorithm, current, read(settings, changes))


def assemble(algorithm: str, *layers: Mapping[str, Any], spell: Spell = str) -> Config:
    """The Config of checked flat values; later layers win as `merge` says, the defaults lie below all."""
    owner = algorithm_named(algorithm)
    run, learner = make(Run, owner.run_defaults, *layers, spell=spell), make(owner, *layers, spell=spell)
    return Config(algorithm, run, learner)


def make(owner: type, *layers: Mapping[str, Any], spell: Spell = str) -> Any:
    """An instance of a settings dataclass from layers of checked flat values; keys of others are left alone."""
    settings = settings_of(owner)
    values = flat_values(owner())
    for layer in spread_rate(owner, layers):
        for each in settings:
            if each.union and layer.get(each.union, values[each.union]) != values[each.union]:
                values.pop(each.name, None)
        values = merge(values, {each.name: layer[each.name] for each in settings if each.name in layer})
    arguments: dict[str, Any] = {each.name: values[each.name] for each in settings if not each.union}
    for union in (each for each in settings if each.kinds):
        arguments[union.name] = _member(union, values, settings, spell)
    return owner(**arguments)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two layers of flat values as one: the upper wins, of mappings (env_kwargs) key by key; an empty one empties."""
    merged = {**below, **above}
    for name, value in above.items():
        if isinstance(value, Mapping) and value and isinstance(below.get(name), Mapping):
            merged[name] = {**below[name], **value}
    return merged


def _member(union: Setting, values: Mapping[str, Any], settings: Sequence[Setting], spell: Spell) -> Any:
    """The instance of the chosen kind; a value for a field that the kind does not have is an error."""
    kind = values[union.name]
    given = [each for each in settings if each.union == union.name and each.name in values]
    for each in given:
        if kind not in each.of:
            raise UsageError(
                f"{spell(each.name)} needs {spell(union.name)} {' or '.join(each.of)}, which is missing: "
                f"{union.name} is {kind}"
            )
    owner = union.kinds[kind]
    prefix = f"{union.name}_"
    return owner and owner(**{each.name.removeprefix(prefix): values[each.name] for each in given})


def flatten(config: Config) -> dict[str, Any]:
    """Plain values that YAML and JSON can hold, from which `build` makes an equal config.

    A callable becomes its `module:attribute`; one without such a name becomes {"callable": its repr}, which `build`
    refuses, so that it has to be given again.
    """
    return {"algorithm": config.algorithm, **_flatten(config.run, config.learner.without), **_flatten(config.learner)}


def _flatten(section: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    hints = typing.get_type_hints(type(section))
    values: dict[str, Any] = {}
    for each in (each for each in dataclasses.fields(section) if each.name not in without):
        value = getattr(section, each.name)
        if _kinds(hints[each.name]):
            values[each.name] = {"kind": _kind(type(value)), **(_flatten(value) if value is not None else {})}
        else:
            values[each.name] = (references.name_of(value) if callable(value) else None) or plain(value, marker)
    return values


# Files.


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The settings in a file, `algorithm` among them if it is there."""
    return {key: value for key, value in load_yaml(path).items() if key != "versions"}


def write_yaml(config: Config, versions: Mapping[str, str]) -> str:
    """The text of a config file, from which `read_yaml` and `build` make an equal config."""
    parts = [dump_yaml({"algorithm": config.algorithm, "versions": dict(versions)})]
    for section, without in ((config.run, config.learner.without), (config.learner, ())):
        parts.append(f"# {(type(section).__doc__ or '').splitlines()[0]}\n{dump_yaml(_flatten(section, without))}")
    return "\n".join(parts)


if __name__ == "__main__":
    from offbeat.settings_page import markdown

    if sys.argv[1:] != ["--markdown"]:
        sys.exit("usage: python -m offbeat.settings --markdown > docs/settings.md")
    print(markdown(), end="")
