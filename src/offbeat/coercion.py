"""Converts one value from Python, YAML or a flag to the type hint of its setting."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

from offbeat import references

NONE = "none"

Spell = Callable[[str], str]
"""How an error writes a key: as it is, or as a flag."""


class Mismatch(Exception):
    """The value is not of the type; the caller knows the key and raises the error."""


def is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other type alone."""
    return typing.get_args(hint) if is_union(hint) else (hint,)


def coerce(hint: Any, value: Any) -> Any:
    """`value` as `hint`, or Mismatch. Accepts what YAML and flags give for it: "1e-3", 1e6 for an int, lists."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_union(hint):
        return _coerce_to_any(arguments, value)
    if origin is Literal:
        return _require(value, any(type(value) is type(choice) and value == choice for choice in arguments))
    if origin is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")] if value.lower() != NONE else []
        fixed = arguments[1:] != (...,)
        _require(value, isinstance(value, list | tuple) and (not fixed or len(value) == len(arguments)))
        return tuple(coerce(arguments[0], entry) for entry in value)
    if origin is collections.abc.Mapping:
        _require(value, isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
        return plain(value, lambda other: other)
    if origin is collections.abc.Callable:
        return references.name_of(_require(value, callable(value))) or value
    return _SCALARS[hint](value)


def is_setting_type(hint: Any) -> bool:
    """Whether `coerce` knows the type. A dataclass counts, too: it is one kind of a setting with fields of its own."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_union(hint):
        return all(is_setting_type(member) for member in arguments)
    if origin is tuple:
        return bool(arguments) and is_setting_type(arguments[0])
    known = (Literal, collections.abc.Mapping, collections.abc.Callable)
    return origin in known or hint in _SCALARS or dataclasses.is_dataclass(hint)


def accepts_callables(hint: Any) -> bool:
    return any(typing.get_origin(member) is collections.abc.Callable for member in alternatives(hint))


def _coerce_to_any(members: tuple[Any, ...], value: Any) -> Any:
    # None first: "none" would otherwise pass as text or as an empty list.
    for member in sorted(members, key=lambda member: member is not types.NoneType):
        try:
            return coerce(member, value)
        except Mismatch:
            continue
    raise Mismatch


def _require(value: Any, holds: bool) -> Any:
    if not holds:
        raise Mismatch
    return value


def _as_none(value: Any) -> None:
    _require(value, value is None or (isinstance(value, str) and value.lower() == NONE))


def _as_bool(value: Any) -> bool:
    return bool(_require(value, isinstance(value, bool)))


def _as_text(value: Any) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return str(_require(text, isinstance(text, str)))


def _as_float(value: Any) -> float:
    _require(value, isinstance(value, str | numbers.Real) and not isinstance(value, bool))
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise Mismatch from None


def _as_int(value: Any) -> int:
    _require(value, isinstance(value, str | numbers.Real) and not isinstance(value, bool))
    try:
        number = int(value)
        if number != value and not isinstance(value, str):
            raise Mismatch
    except (ValueError, OverflowError):
        # A string such as "1e6", or NaN and infinity, which no int can be.
        decimal = _as_float(value)
        _require(value, decimal.is_integer())
        number = int(decimal)
    return int(_require(number, abs(number) < 2**63))


def beyond_int(value: Any) -> bool:
    """Whether a value, or the number in a text, does not fit in 64 bits."""
    if not isinstance(value, str | numbers.Real):
        return False
    try:
        number = float(value)
    except OverflowError:
        return True
    except ValueError:
        return False
    digits = isinstance(value, str) and any(character.isdigit() for character in value)  # "1e400", not "inf"
    return abs(number) >= 2**63 and (digits or math.isfinite(number))


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    types.NoneType: _as_none,
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    str: _as_text,
}

_WORDS = {types.NoneType: NONE, bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def type_words(hint: Any) -> str:
    """The type in words: "a whole number or none"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_union(hint):
        # A reference is written `str | Callable`: text is only the callable's name.
        reference = any(typing.get_origin(member) is collections.abc.Callable for member in arguments)
        return " or ".join(type_words(member) for member in arguments if not (reference and member is str))
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin is tuple:
        length = "" if arguments[1:] == (...,) else f" of {len(arguments)}"
        return f"a list{length}, each {type_words(arguments[0])}"
    if origin is collections.abc.Mapping:
        return "a mapping of names to values"
    if origin is collections.abc.Callable:
        return "module:callable (in Python also the callable)"
    return _WORDS[hint]


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int with thousands of digits
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= 100 else f"{text[:97]}..."


def text_of(value: Any) -> str:
    """A value as a flag takes it: lists with spaces, mappings as key=value, `none` for no value."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={text_of(entry)}" for key, entry in value.items()) or NONE
    if isinstance(value, list | tuple):
        return " ".join(text_of(entry) for entry in value) or NONE
    if isinstance(value, bool):
        return str(value).lower()
    return NONE if value is None else str(references.name_of(value) if callable(value) else value)


def suggest(word: Any, known: Iterable[str]) -> str | None:
    """The known word that is closest to a misspelt one, if any is close."""
    close = difflib.get_close_matches(str(word).lower().replace("-", "_"), list(known), n=1)
    return close[0] if close else None


def suggestion(word: Any, known: Iterable[str], spell: Spell = str) -> str:
    close = suggest(word, known) if isinstance(word, str) else None
    return f"; did you mean {spell(close)}?" if close else ""


def plain(value: Any, other: Callable[[Any], Any]) -> Any:
    """Mappings as dicts, sequences and arrays as lists, NumPy's scalars as Python's; `other` converts the rest."""
    if isinstance(value, Mapping):
        return {key: plain(entry, other) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, other) for entry in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if type(value) in (types.NoneType, bool, int, float, str) else other(value)


def marker(value: Any) -> dict[str, str]:
    """What a file holds in the place of a value that cannot be written to a file."""
    return {"callable": repr(value)}


def lost(value: Any) -> str | None:
    """The value that the first marker inside another one replaces; None if there is no marker."""
    if isinstance(value, Mapping):
        if list(value) == ["callable"]:
            return str(value["callable"])
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((found for found in map(lost, value) if found is not None), None)
    return None
