"""The protocol of additional loggers (TensorBoard, W&B), and how to open one by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from offbeat import durable
from offbeat.errors import UsageError


class Logger(Protocol):
    """Receives a run's metrics."""

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs numbers by `group/name` at an environment step."""
        ...

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Logs the run's status and results, as in summary.json; each call replaces the previous one."""
        ...

    def close(self) -> None: ...


def check_loggers(names: Sequence[str]) -> None:
    """Raises UsageError if a logger's library is missing. Call it before anything is created."""
    if "wandb" in names:
        found = importlib.util.find_spec("wandb")
        if found is None or found.origin is None:  # no origin: a directory ./wandb with logs, not the library
            raise UsageError(
                "logger has wandb, but the library wandb is not installed: pip install 'offbeat[wandb]', or leave "
                "wandb out of logger"
            )


def open_logger(
    name: str, path: Path, settings: Mapping[str, Any], purge_step: int | None = None, quiet: bool = False
) -> Logger:
    """Opens the logger `name` for the run in `path`. purge_step: the first step that a resumed run repeats."""
    if name == "wandb":
        from offbeat.observe.wandb import WeightsAndBiases

        return WeightsAndBiases(path, settings, quiet)
    from offbeat.observe.tensorboard import TensorBoard

    durable.check_inside(path / "tensorboard", path)
    return TensorBoard(path / "tensorboard", settings, purge_step)
