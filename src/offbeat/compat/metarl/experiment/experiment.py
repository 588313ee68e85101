"""Experiments as decorated functions, each run in a directory of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.errors import UsageError


@dataclass(frozen=True)
class ExperimentContext:
    """What an experiment's function gets as `ctxt`, and passes to LocalRunner. prints: one line per epoch."""

    snapshot_dir: str
    snapshot_mode: str
    snapshot_gap: int
    prints: bool = True


def wrap_experiment(
    function: Callable[..., Any] | None = None,
    *,
    log_dir: str | None = None,
    prefix: str = "experiment",
    name: str | None = None,
    snapshot_mode: str = "last",
    snapshot_gap: int = 1,
    use_existing_dir: bool = False,
) -> Any:
    """Decorates a function `f(ctxt, ...)`; it is then called without ctxt, with keyword arguments.

    It runs in data/local/PREFIX/NAME, or in log_dir; a number is added where that exists, unless use_existing_dir.
    """
    if function is None:
        return functools.partial(
            wrap_experiment,
            log_dir=log_dir,
            prefix=prefix,
            name=name,
            snapshot_mode=snapshot_mode,
            snapshot_gap=snapshot_gap,
            use_existing_dir=use_existing_dir,
        )
    parameters = list(inspect.signature(function).parameters)
    if parameters[:1] != ["ctxt"]:
        raise UsageError(
            f"wrap_experiment: {function.__name__} must have ctxt as its first parameter, has {parameters}"
        )
    chosen = Path(log_dir) if log_dir is not None else Path.cwd() / "data/local" / prefix / (name or function.__name__)

    @functools.wraps(function)
    def experiment(**kwargs: Any) -> Any:
        directory = _make_directory(chosen, use_existing_dir)
        return function(ExperimentContext(str(directory), snapshot_mode, snapshot_gap), **kwargs)

    return experiment


def _make_directory(path: Path, use_existing: bool) -> Path:
    number, directory = 0, path
    while not use_existing and directory.exists():
        number += 1
        directory = path.with_name(f"{path.name}_{number}")
    directory.mkdir(parents=True, exist_ok=use_existing)
    return directory
