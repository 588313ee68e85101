"""YAML from untrusted sources: plain values only, with limits on size, depth and alias expansion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from offbeat.errors import UsageError

MAX_BYTES = 1 << 20
"""Largest size of a file or text."""
MAX_DEPTH = 50
"""Most levels of nested lists and mappings."""
MAX_VALUES = 100_000
"""Most values, where an alias counts as many as it refers to."""
MAX_SCALAR_LENGTH = 400
"""Most characters of a number, a date or any other scalar that is not text."""
_TEXT = "tag:yaml.org,2002:str"


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as YAML 1.2 does; YAML 1.1 reads it as text."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag != _TEXT and len(node.value) > MAX_SCALAR_LENGTH:
            raise _problem(f"a number of {len(node.value)} characters; at most {MAX_SCALAR_LENGTH} are read", node)
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # PyYAML lets Python's errors through for `!!int x`, or for day 99 of a month
            raise _problem(
                f"{str(node.value)[:40]!r} is not of the type {node.tag.rpartition(':')[2]}", node
            ) from error


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `_Loader` would read as numbers."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def parse_yaml(text: str) -> Any:
    """Parses a YAML text to plain values; raises yaml.YAMLError if it is invalid or exceeds a limit."""
    if len(text) > MAX_BYTES:
        raise _problem(f"it has {len(text)} characters; at most {MAX_BYTES} are read")
    _check_size(text)
    return yaml.load(text, Loader=_Loader)


def _check_size(text: str) -> None:
    """Raises YAMLError if the text is too deep or has too many values, before any value is constructed.

    open_nodes: anchor and number of values so far of each list and mapping that is still open.
    """
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
            if len(open_nodes) > MAX_DEPTH + 1:
                raise _problem(f"more than {MAX_DEPTH} levels of nested lists and mappings", event)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in open_nodes):
                raise _problem(f"the alias *{event.anchor} is inside of its own anchor &{event.anchor}", event)
            anchor, size = None, sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, count = open_nodes[-1]
        open_nodes[-1] = outer, count + size
        if count + size > MAX_VALUES:
            raise _problem(f"more than {MAX_VALUES} values, with aliases expanded", event)


def _problem(message: str, where: Any = None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=getattr(where, "start_mark", None))


def problem_text(error: yaml.YAMLError) -> str:
    """The message of an error, without an excerpt of the YAML text."""
    return str(getattr(error, "problem", None) or error)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Reads a file of settings. A file that a run wrote also has the key `versions`, and then holds every setting."""
    try:
        with open(path, "rb") as file:
            content = parse_yaml(file.read(MAX_BYTES + 1).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a UTF-8 text file; save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{where} is not YAML that can be read: {problem_text(error)}") from error
    if content is not None and not isinstance(content, dict):
        raise UsageError(f"{path} holds a {type(content).__name__}; it must hold settings as `key: value` lines")
    return content or {}


def dump_yaml(values: Mapping[str, Any]) -> str:
    return yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )
