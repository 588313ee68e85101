"""Settings from anywhere: Python, YAML and the command line all become one checked `Config` here.

The dataclasses of `algorithms.configs` are walked by their type hints, so that a new setting or algorithm needs no
change here. Keys are flat: the settings of the run's and the algorithm's groups side by side. A union of dataclasses
(temperature) is one key for its kind and one per field of a kind (temperature, temperature_initial, temperature_value);
a mapping with `kind`, and an instance, mean the same.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat import flat, foreign_names, references
from offbeat.algorithms.configs import Config, Run
from offbeat.algorithms.configs.checks import check_config
from offbeat.algorithms.configs.groups import SEQUENCES_IN_BATCH
from offbeat.algorithms.registry import ALGORITHMS, find, key_of
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
    type_words,
)
from offbeat.errors import UsageError
from offbeat.keys import Setting, expanded, flat_values, keys_of, kind_of, kinds_of, settings_of
from offbeat.ranges import check_range
from offbeat.yamltext import dump_yaml, load_yaml

# Reading: any mapping to checked flat values.


def read(settings: Sequence[Setting], mapping: Mapping[Any, Any], spell: Spell = str) -> dict[str, Any]:
    """Flat values of `mapping`, each with its setting's type and in its range. UsageError names the first wrong key."""
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
        entries = {"kind": kind_of(type(value)), **flat_values(value)}
    elif callable(value) or (isinstance(value, str) and ":" in value):
        entries = _of_own_code(union, value)
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


def _of_own_code(union: Setting, value: Any) -> dict[str, Any]:
    """What a callable, or its name, means in the place of a kind: the kind whose field `shorthand` names takes it."""
    for kind, member in union.kinds.items():
        if (shorthand := getattr(member, "shorthand", None)) is not None:
            return {"kind": kind, shorthand: value}
    return {"kind": value}


def _checked(setting: Setting, value: Any, spell: Spell) -> Any:
    name = spell(setting.name)
    try:
        if (missing := lost(value)) is not None:
            raise UsageError(
                f"{name} was {missing} in Python, which cannot be written to a file; give it again from Python"
            )
        value = coerce(setting.hint, value)
    except RecursionError as error:
        raise UsageError(f"{name} contains itself or is nested too deeply; use fewer levels") from error
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
    """The remedy for a name that only our other algorithms, or other libraries, have."""
    name, known = key.lower().replace("-", "_"), list(known)
    owners = [each for each in ALGORITHMS if any(name == setting.name for setting in train_settings(each))]
    if owners and name not in known and name not in foreign_names.FOREIGN:
        return f"only {', '.join(owners)} ha{'s' if len(owners) == 1 else 've'} this setting: leave it out"
    return foreign_names.answer(name, known, spell)


# Making a Config, and taking it apart.


def train_settings(algorithm: str) -> tuple[Setting, ...]:
    """The keys that training with an algorithm takes: the run's, then its own."""
    return run_settings(algorithm) + own_settings(algorithm)


def own_settings(algorithm: str) -> tuple[Setting, ...]:
    """The algorithm's own keys, and `learning_rate` for all groups if each has a rate of its own."""
    record = find(algorithm)
    return _settings(record.config, record.defaults, record.without) + shared_rate(record.config)


def run_settings(algorithm: str) -> tuple[Setting, ...]:
    """The run's keys that an algorithm has, with its own defaults."""
    record = find(algorithm)
    return _settings(Run, record.run_defaults, record.without)


def _settings(owner: type, defaults: Mapping[str, Any], without: Sequence[str]) -> tuple[Setting, ...]:
    keys = keys_of(owner, flat_values(make(owner, defaults)))
    return tuple(each for each in keys if each.name not in without)


RATE = "learning_rate"


def shared_rate(owner: type) -> tuple[Setting, ...]:
    """The key `learning_rate`, if a config class has rates of groups only; no field belongs to it."""
    rates = _group_rates(owner)
    if not rates:
        return ()
    names = ", ".join(each.name for each in rates)
    text = f"Sets {names} at once. One that is set by its own name wins."
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


def make_config(algorithm: Any, mapping: Mapping[str, Any]) -> Config:
    """The Config that flat keys describe, over the defaults. A key `algorithm` is allowed if it says the same.

    algorithm: a name, `module:thing`, or a record.
    """
    name = key_of(algorithm)
    settings = train_settings(name)
    mapping = {key: value for key, value in mapping.items() if (key, value) != ("algorithm", name)}
    if "algorithm" in mapping:
        raise UsageError(
            f"algorithm={shown(mapping['algorithm'])} was given, but these are settings of {name}; leave algorithm out"
        )
    return assemble(name, read(settings, mapping))


def make_learner_config(algorithm: Any, **settings: Any) -> Any:
    """The algorithm's own half of a Config, from its flat keys alone."""
    name = key_of(algorithm)
    given = read(own_settings(name), settings)
    config = make(find(name).config, _defaults(name, given), given)
    check_config(config)
    return config


def all_values(config: Config) -> dict[str, Any]:
    """The flat keys of both halves of a config with their values."""
    return flat_values(config.run) | flat_values(config.learner)


def with_changes(config: Config, **changes: Any) -> Config:
    """The config with some flat keys changed; another kind of a union starts from its own defaults."""
    settings = train_settings(config.algorithm)
    return assemble(config.algorithm, all_values(config), read(settings, changes))


def assemble(algorithm: str, *layers: Mapping[str, Any], spell: Spell = str) -> Config:
    """The Config of checked flat values. Later layers win, as in `merge`; the defaults are the first layer."""
    record = find(algorithm)
    run = make(Run, record.run_defaults, *layers, spell=spell)
    return Config(algorithm, run, make(record.config, _defaults(algorithm, *layers), *layers, spell=spell))


def _defaults(algorithm: str, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm's own defaults; a batch of sequences has fewer than one of transitions."""
    network = [layer["network"] for layer in layers if "network" in layer][-1:]
    fewer = {"batch_size": SEQUENCES_IN_BATCH} if network and network != ["mlp"] else {}
    return {**find(algorithm).defaults, **fewer}


def make(owner: type, *layers: Mapping[str, Any], spell: Spell = str) -> Any:
    """An instance of a settings dataclass from layers of checked flat values; other keys are ignored."""
    settings = settings_of(owner)
    values = expanded(owner, flat.defaults(owner))
    for layer in spread_rate(owner, layers):
        for each in settings:
            if each.union and layer.get(each.union, values[each.union]) != values[each.union]:
                values.pop(each.name, None)
        values = merge(values, {each.name: layer[each.name] for each in settings if each.name in layer})
    arguments: dict[str, Any] = {each.name: values[each.name] for each in settings if not each.union}
    for union in (each for each in settings if each.kinds):
        arguments[union.name] = _member(union, values, settings, spell)
    return _nested(owner, arguments)


def _nested(owner: type, values: Mapping[str, Any]) -> Any:
    """A dataclass of settings and groups from flat values."""
    arguments = {
        each.name: _nested(each.metadata["group"], values) if "group" in each.metadata else values[each.name]
        for each in dataclasses.fields(owner)
    }
    return owner(**arguments)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two layers of flat values as one: `above` wins, for mappings (env_kwargs) key by key. An empty mapping clears."""
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
                f"{spell(each.name)} needs {spell(union.name)} {' or '.join(each.of)}, but {union.name} is {kind}"
            )
    owner = union.kinds[kind]
    prefix = f"{union.name}_"
    return owner and owner(**{each.name.removeprefix(prefix): values[each.name] for each in given})


def flatten(config: Config) -> dict[str, Any]:
    """Plain values that YAML and JSON can hold, from which `make_config` makes an equal config.

    A callable becomes its `module:attribute`. One without such a name becomes {"callable": its repr}, which
    `make_config` refuses, so that it has to be given again.
    """
    without = find(config.algorithm).without
    return {"algorithm": config.algorithm, **_flatten(config.run, without), **_flatten(config.learner, without)}


def _flatten(section: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    values = flat.values(section)
    for leaf in (leaf for leaf in flat.leaves(type(section)) if leaf.name not in without):
        value = values[leaf.name]
        if kinds_of(leaf.hint):
            found[leaf.name] = {"kind": kind_of(type(value)), **(_flatten(value) if value is not None else {})}
        else:
            found[leaf.name] = (references.name_of(value) if callable(value) else None) or plain(value, marker)
    return found


# Files.


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The settings in a file, with `algorithm` if the file has it."""
    return {key: value for key, value in load_yaml(path).items() if key != "versions"}


def write_yaml(config: Config, versions: Mapping[str, str]) -> str:
    """The text of a config file, from which `read_yaml` and `make_config` make an equal config."""
    return recorded_yaml(flatten(config), versions)


def recorded_yaml(recorded: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """As `write_yaml`, from what `flatten` returned."""
    record = find(recorded["algorithm"])
    parts = [dump_yaml({"algorithm": recorded["algorithm"], "versions": dict(versions)})]
    for section, title in ((Run, (Run.__doc__ or "").splitlines()[0]), (record.config, record.description)):
        names = [leaf.name for leaf in flat.leaves(section) if leaf.name in recorded]
        parts.append(f"# {title}\n{dump_yaml({name: recorded[name] for name in names})}")
    return "\n".join(parts)


if __name__ == "__main__":
    from offbeat.settings_page import markdown

    if sys.argv[1:] != ["--markdown"]:
        sys.exit("usage: python -m offbeat.settings --markdown > docs/settings.md")
    print(markdown(), end="")
