"""References to a user's code as `module:attribute`, so that a saved config can import it again."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from offbeat.errors import UsageError


def resolve(reference: str | Callable[..., Any], key: str) -> Callable[..., Any]:
    """Imports the callable that `reference` names; returns a callable as it is. Also searches the working directory."""
    if callable(reference):
        return _maker(reference, key)
    value = find(reference, key)
    if not callable(value):
        raise UsageError(f"{key}={reference!r} is a {type(value).__name__}, not a callable")
    return _maker(value, key)


def find(reference: str, key: str) -> Any:
    """The object that `module:attribute` names. The working directory is searched too. key: for errors."""
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(
            f"{key}={reference!r} is not of the form module:callable, for example my_package.my_module:make"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` may exit
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            problem = f"there is no module {error.name!r} in {os.getcwd()} or among the installed packages"
        else:
            problem = f"importing {module_name} raised {type(error).__name__}: {error}; correct the module"
        raise UsageError(f"{key}={reference!r}: {problem}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UsageError(f"{key}={reference!r}: {module_name} has no {part!r}")
        value = getattr(value, part)
    return value


def _maker(value: Any, key: str) -> Callable[..., Any]:
    """Returns the callable; raises UsageError for a network, which is callable, too, but takes observations."""
    if hasattr(value, "state_dict") and not isinstance(value, type):
        name = type(value).__name__
        raise UsageError(
            f"{key} is an existing {name}, but each learner and each process must create its own; pass a function "
            f"that creates it from the environment's sizes, such as {key}=lambda spec: {name}(...)"
        )
    made: Callable[..., Any] = value
    return made


def name_of(function: str | Callable[..., Any] | None) -> str | None:
    """`module:attribute` if `resolve` finds the same object by it, else None (lambdas, closures, __main__)."""
    if function is None or isinstance(function, str):
        return function
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not qualified or module == "__main__" or "<" in qualified:
        return None
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return f"{module}:{qualified}" if found is function else None
