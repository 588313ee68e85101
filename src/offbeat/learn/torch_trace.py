"""Tracing the parts of an update, of which the algorithm's file knows nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any


def traced(module: Any, span: Callable[[str], AbstractContextManager[None]]) -> dict[str, Any]:
    """The names of an algorithm's module, with functions that record each call of `update_...` as a span.

    The module's functions are made again over these names, so that they call the recording ones, and the module itself
    stays as it is.
    """
    names = dict(vars(module))
    own = getattr(module.update if hasattr(module, "update") else module.learn_rollout, "__globals__", None)
    for name, value in vars(module).items():
        if isinstance(value, FunctionType):
            function = _over(value, names) if value.__globals__ is own else value
            names[name] = _recorded(function, name, span) if name.startswith("update_") else function
    return names


def _recorded(function: FunctionType, name: str, span: Callable[[str], AbstractContextManager[None]]) -> Any:
    part = name.removeprefix("update_")

    def recorded(*arguments: Any, **named: Any) -> Any:
        with span(part):
            return function(*arguments, **named)

    return recorded


def _over(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """The same function, whose global names are looked up in `names`."""
    found = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    found.__kwdefaults__ = function.__kwdefaults__
    return found
