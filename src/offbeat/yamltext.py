"""YAML of people we do not know: plain values, and limits on what a short text can make of our memory and time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from offbeat.errors import UsageError

LARGEST = 1 << 20
"""Bytes of a file or text."""
DEEPEST = 50
"""Lists and mappings inside each other."""
MOST_VALUES = 100_000
"""Values, where each alias counts for all that it stands for."""
LONGEST_NUMBER = 400
"""Characters of a number, a date or anything else that is not text."""
_TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-3 for text; here it is a number, as in YAML 1.2."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > LONGEST_NUMBER:
            raise _problem(f"a number of {len(node.value)} characters; at most {LONGEST_NUMBER} are read", node)
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # PyYAML leaves to Python what it makes of `!!int x`, or of the 99th of a month
            raise _problem(
                f"{str(node.value)[:40]!r} is not of the type {node.tag.rpartition(':')[2]}", node
            ) from error


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would take for numbers."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def parse_yaml(text: str) -> Any:
    """What a YAML text holds, plain values only; yaml.YAMLError says what is wrong with it, or too much."""
    if len(text) > LARGEST:
        raise _problem(f"it has {len(text)} characters; at most {LARGEST} are read")
    _check_extent(text)
    return yaml.load(text, Loader=_Loader)


def _check_extent(text: str) -> None:
    """Refuses what is too deep or too much before any value is made.

    open_nodes: anchor and number of values so far of each list and mapping that the reader is in.
    """
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
            if len(open_nodes) > DEEPEST + 1:
                raise _problem(f"more than {DEEPEST} lists and mappings inside each other", event)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in open_nodes):
                raise _problem(f"*{event.anchor} stands inside of &{event.anchor}, which it stands for", event)
            anchor, size = None, sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, count = open_nodes[-1]
        open_nodes[-1] = outer, count + size
        if count + size > MOST_VALUES:
            raise _problem(f"more than {MOST_VALUES} values, counting what its aliases stand for", event)


def _problem(words: str, where: Any = None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=words, problem_mark=getattr(where, "start_mark", None))


def problem_of(error: yaml.YAMLError) -> str:
    """What is wrong, without the text around it."""
    return str(getattr(error, "problem", None) or error)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """All that a file of settings holds. `versions` is in it where a run wrote it: then it held every setting."""
    try:
        with open(path, "rb") as file:
            content = parse_yaml(file.read(LARGEST + 1).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file in UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{where} is not YAML that can be read: {problem_of(error)}") from error
    if content is not None and not isinstance(content, dict):
        raise UsageError(f"{path} holds a {type(content).__name__}; it must hold settings as `key: value` lines")
    return content or {}


def dump_yaml(values: Mapping[str, Any]) -> str:
    return yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )
