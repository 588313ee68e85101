"""Loggers beside the run's own files: what they have in common, and which names stand for which."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from offbeat import durable
from offbeat.errors import UsageError


class Logger(Protocol):
    """Somewhere that a run's numbers go to."""

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers by `group/name`, at an environment step."""
        ...

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """How the run stands or ended, as in summary.json; the last one counts."""
        ...

    def close(self) -> None: ...


def check_loggers(names: Sequence[str]) -> None:
    """Raises UsageError where a logger's library is missing; to be asked before anything is created."""
    if "wandb" in names:
        found = importlib.util.find_spec("wandb")
        if found is None or found.origin is None:  # no origin: a mere directory ./wandb, as W&B itself leaves behind
            raise UsageError(
                "logger has wandb, but the library wandb is not installed: pip install 'offbeat[wandb]', or leave "
                "wandb out of logger"
            )


def open_logger(
    name: str, path: Path, settings: Mapping[str, Any], purge_step: int | None = None, quiet: bool = False
) -> Logger:
    """The logger of a name, for the run in `path`. purge_step: the first step that a resumed run makes again."""
    if name == "wandb":
        from offbeat.observe.wandb import WeightsAndBiases

        return WeightsAndBiases(path, settings, quiet)
    from offbeat.observe.tensorboard import TensorBoard

    durable.stay_inside(path / "tensorboard", path)
    return TensorBoard(path / "tensorboard", settings, purge_step)
