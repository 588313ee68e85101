"""Settings as command-line flags: tyro splits the words and prints the help, `offbeat.settings` checks the values.

Tyro takes every flag as text, so that a wrong value gives the same error as in a YAML file.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import yaml

from offbeat.coercion import NONE, alternatives, shown, suggest, text_of
from offbeat.errors import UsageError
from offbeat.settings import Setting, other_name
from offbeat.yamltext import parse_yaml, problem_text

Groups = Mapping[str, Sequence[Setting]]
"""The flags of a command by their title in the help; the title "" is for the command's own flags."""

WORDS = {
    "RUN": "Directory of a run, printed as `run: PATH`.",
    "ENV": "Gymnasium id, or module:factory.",
}
"""Help texts of the positional arguments."""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def wants_help(argv: Sequence[str]) -> bool:
    return "-h" in argv or "--help" in argv


def value_after(argv: Sequence[str], wanted: str) -> str | None:
    """The value of one flag, at any position; the others are not checked."""
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == wanted:
            return value if equals else next(iter(argv[position + 1 :]), None)
    return None


def show_help(command: str, description: str, groups: Groups, values: Mapping[str, Any], word: str | None) -> None:
    """Prints the flags, with `values` as defaults where there are some."""
    import tyro

    try:
        tyro.cli(
            _flags_type(groups, values, word),
            prog=f"offbeat {command}",
            description=description,
            args=["--help"],
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
        )
    except SystemExit:
        return


def parse(command: str, argv: Sequence[str], groups: Groups, word: str | None) -> tuple[str, dict[str, Any]]:
    """The positional word ("" where the command has none) and the given flags as raw values for `settings.read`."""
    import tyro

    settings = [setting for group in groups.values() for setting in group]
    given = _given(command, argv, settings)
    parsed: Any
    parsed, rest = tyro.cli(
        _flags_type(groups, {}, word),
        args=list(argv),
        return_unknown_args=True,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
    )
    values: dict[str, Any] = {}
    for title, group in groups.items():
        texts = getattr(parsed, title) if title else parsed
        values |= {each.name: _raw(each, getattr(texts, each.name), word) for each in group if each.name in given}
    words = [*getattr(parsed, "word", ()), *rest]
    if len(words) != (word is not None):
        extra = " ".join(words[word is not None :])
        problem = f"does not take {extra!r}" if words else f"needs {word}"
        remedy = f"an environment is given as --env {extra}, or " if word is None and "env" not in given else ""
        raise UsageError(f"offbeat {command} {problem}; {remedy}see offbeat {command} --help")
    return "".join(words), values


def _given(command: str, argv: Sequence[str], settings: Sequence[Setting]) -> set[str]:
    """Names of the flags that were given; UsageError for a flag that is unknown, given twice or without its value."""
    switches = {
        flag(no + setting.name): setting.name for setting in settings if _is_switch(setting) for no in ("", "no_")
    }
    names = {flag(setting.name): setting.name for setting in settings} | switches
    given: set[str] = set()
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    for word, following in itertools.pairwise([*words, "--"]):
        if not word.startswith("--"):
            continue
        spelt, equals, _ = word.partition("=")
        spelt = spelt.replace("_", "-")
        if spelt not in names:
            known = [name[2:].replace("-", "_") for name in names]
            close = suggest(spelt[2:], known)
            trains = command.startswith(("train", "resume"))
            remedy = (other_name(spelt[2:], known, flag) if trains else None) or (
                f"did you mean {flag(close)}?" if close else f"see offbeat {command} --help"
            )
            raise UsageError(f"there is no flag {spelt} for offbeat {command}; {remedy}")
        if names[spelt] in given:
            raise UsageError(f"{flag(names[spelt])} is given twice; give it once")
        given.add(names[spelt])
        if spelt in switches and equals:
            raise UsageError(f"{word} has a value, but {spelt} takes none; use {spelt} alone")
        if spelt not in switches and not equals and re.match(r"--|-[A-Za-z]", following):
            raise UsageError(f"{spelt} needs a value; see offbeat {command} --help")
    return given


def _raw(setting: Setting, text: Any, word: str | None) -> Any:
    if _is_mapping(setting):
        return _pairs(flag(setting.name), text, word)
    return ",".join(text) if isinstance(text, tuple) else text


def _pairs(name: str, words: Sequence[str], word: str | None) -> dict[str, Any]:
    """key=value words as a mapping, each value read as YAML."""
    pairs: dict[str, Any] = {}
    for each in words if tuple(words) != (NONE,) else ():
        key, equals, value = each.partition("=")
        if not equals or not key:
            remedy = f", or put {word} before {name}" if word else ""
            raise UsageError(f"{name} {each!r} is not of the form key=value; write for example g=9.81{remedy}")
        try:
            pairs[key] = parse_yaml(value)
        except yaml.YAMLError as error:
            raise UsageError(
                f"{name} {shown(each)}: {shown(value)} is not YAML that can be read ({problem_text(error)}); if it is "
                "meant as text, put it in quotes"
            ) from error
    return pairs


def _flags_type(groups: Groups, values: Mapping[str, Any], word: str | None) -> type:
    """A dataclass for tyro whose fields are text, lists of text, and switches."""
    import tyro

    members: list[Any] = []
    if word is not None:
        annotation = Annotated[
            tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar=word, help=WORDS[word], help_behavior_hint="")
        ]
        members.append(("word", annotation, ()))
    for title, group in groups.items():
        inner = [_field(setting, values) for setting in group]
        if title:
            nested = dataclasses.make_dataclass(title, inner)
            nested.__doc__ = ""
            members.append((title, nested, dataclasses.field(default_factory=nested)))
        else:
            members += inner
    return dataclasses.make_dataclass("Flags", members)


def _field(setting: Setting, values: Mapping[str, Any]) -> tuple[str, Any, Any]:
    import tyro

    value = values.get(setting.name, setting.default)
    default = text_of(value) if setting.name in values else setting.default_words
    only = f" Only with {flag(setting.union)} {' or '.join(setting.of)}." if setting.union else ""
    limits = f" Must be {setting.range}." if setting.limits else ""
    text = setting.help + limits + only
    if _is_switch(setting):
        return setting.name, Annotated[bool, tyro.conf.arg(help=text)], bool(value)
    if value == "":
        text += " Required."
    configuration = tyro.conf.arg(
        metavar=_metavar(setting), help=text, help_behavior_hint=f"(default: {default})" if value != "" else ""
    )
    if _is_list(setting) or _is_mapping(setting):
        return setting.name, Annotated[tuple[str, ...], configuration], ()
    return setting.name, Annotated[str, configuration], ""


def _is_switch(setting: Setting) -> bool:
    return bool in alternatives(setting.hint)


def _is_list(setting: Setting) -> bool:
    return any(typing.get_origin(member) is tuple for member in alternatives(setting.hint))


def _is_mapping(setting: Setting) -> bool:
    return any(typing.get_origin(member) is collections.abc.Mapping for member in alternatives(setting.hint))


def _metavar(setting: Setting) -> str:
    return _type_metavar(next(member for member in reversed(alternatives(setting.hint)) if member is not type(None)))


def _type_metavar(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "{" + ",".join(str(choice) for choice in arguments) + "}"
    if origin is tuple and arguments[1:] != (...,):
        return " ".join(_type_metavar(each) for each in arguments)
    if origin is tuple:
        return f"{_type_metavar(arguments[0])} ..."
    if origin is collections.abc.Mapping:
        return "KEY=VALUE ..."
    return {int: "INT", float: "NUMBER", str: "TEXT"}.get(hint, "MODULE:CALLABLE")
