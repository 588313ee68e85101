"""References to a user's code as `module:attribute`, so that a saved config can import it again."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from offbeat.errors import OffbeatError, UsageError, describe
from offbeat.pure_networks import is_pure


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
    if (module := module_of(module_name)) != module_name:
        raise UsageError(f"{key}={reference!r} names a file; name the module instead: {module}:{attribute}")
    value: Any = import_module(module_name, reference, key)
    for part in attribute.split("."):
        if not hasattr(value, part):
            own = [name for name in dir(value) if not name.startswith("_")]
            raise UsageError(f"{key}={reference!r}: {module_name} has no {part!r}{_nearest(part, own)}")
        value = getattr(value, part)
    return value


def module_of(name: str) -> str:
    """The module that a file's name stands for: parts.sharpen for `./parts/sharpen.py`. A module's name stays."""
    if not name.endswith(".py") and "/" not in name and os.sep not in name:
        return name
    return os.path.relpath(name.removesuffix(".py")).replace(os.sep, ".").lstrip(".")


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def import_module(name: str, reference: str, key: str) -> ModuleType:
    """Imports a module of a user's. reference, key: for errors."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script without `if __name__ == "__main__"` may exit
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            problem = f"there is no module {error.name!r} in {os.getcwd()} or among the installed packages"
        else:
            problem = f"importing {name} raised {type(error).__name__}: {error}; correct the module"
        raise UsageError(f"{key}={reference!r}: {problem}") from error


def make_own(reference: str | Callable[..., Any], key: str, protocol: type, *arguments: Any, **named: Any) -> Any:
    """Calls a user's callable, or the one that `reference` names, and checks that what it makes follows the protocol.

    UsageError if the call raises, or if a method or attribute of the protocol is missing.
    """
    name = name_of(reference) or repr(reference)
    try:
        made = resolve(reference, key)(*arguments, **named)
    except OffbeatError:
        raise
    except Exception as error:
        signature = ", ".join([*(type(each).__name__ for each in arguments), *(f"{each}=" for each in named)])
        raise UsageError(f"{key}={name}: calling it with ({signature}) raised {describe(error)}") from error
    members = (*protocol.__annotations__, *vars(protocol))
    needed = [each for each in members if not each.startswith("_") or each in ("__call__", "__len__")]
    if missing := [each for each in needed if not hasattr(made, each)]:
        raise UsageError(
            f"{key}={name} made a {type(made).__name__} without {', '.join(missing)}; it needs {', '.join(needed)}, as "
            f"in {protocol.__module__}.{protocol.__name__}"
        )
    for each in needed:
        check_call(f"{key}={name}", made, protocol, each)
    return made


def check_call(who: str, made: Any, protocol: type, name: str) -> None:
    """Raises UsageError if a method does not take the arguments that it is called with."""
    declared = vars(protocol).get(name)
    if not isinstance(declared, FunctionType) or name == "__len__":
        return
    _, *parameters = inspect.signature(declared).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    named = {each.name: None for each in needed if each.kind is each.KEYWORD_ONLY}
    try:
        inspect.signature(getattr(made, name)).bind(*(each for each in needed if each.name not in named), **named)
    except (TypeError, ValueError) as error:
        form = ", ".join(f"{each.name}=" if each.name in named else each.name for each in parameters)
        raise UsageError(f"{who}: {name} of {type(made).__name__} must take ({form}): {error}") from error


def _maker(value: Any, key: str) -> Callable[..., Any]:
    """Returns the callable; raises UsageError for a network, which is callable, too, but takes observations."""
    if (hasattr(value, "state_dict") or is_pure(value)) and not isinstance(value, type):
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


def name_of_object(value: Any, first: str) -> str | None:
    """`module:attribute` of an object that an imported module has; None if only a script (__main__) has it.

    first: the module to look in first.
    """
    for module in (first, *tuple(sys.modules)):
        held = getattr(sys.modules.get(module), "__dict__", {})
        for name, each in tuple(held.items()):
            if each is value and module not in ("__main__", "__mp_main__"):
                return f"{module}:{name}"
    return None
