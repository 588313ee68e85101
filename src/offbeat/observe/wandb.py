"""Weights & Biases: the same numbers as metrics.jsonl, in groups, over environment steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.errors import OffbeatError

PROJECT = "offbeat"
"""The project where WANDB_PROJECT names none."""


class WeightsAndBiases:
    """Sends numbers to one W&B run for the run in `path`; W&B's own variables (WANDB_MODE, ...) say how and where.

    The W&B run's id is kept in `path`, so that a resumed run goes on in it. Where the program has a W&B run open
    already (its own, or a sweep's), that one is used and left open.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], quiet: bool = False) -> None:
        import wandb

        mine = path / "wandb" / "id"
        durable.stay_inside(mine, path)
        self._borrowed = wandb.run is not None
        self._run: Any = wandb.run or _begin(path, mine.read_text().strip() if mine.is_file() else None, quiet)
        mine.parent.mkdir(exist_ok=True)
        durable.write_file(mine, f"{self._run.id}\n".encode())
        self._run.config.update(dict(settings), allow_val_change=True)
        self._names: set[str] = set()
        self._status = ""

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point per name. W&B's own counter of calls cannot go back on resume, so `step` is the x axis instead."""
        for name in numbers.keys() - self._names:
            self._run.define_metric(name, step_metric="step")
            self._names.add(name)
        self._run.log({"step": step, **numbers})

    def summarise(self, summary: Mapping[str, Any]) -> None:
        self._status = str(summary["status"])
        self._run.summary.update(_flat(summary))

    def close(self) -> None:
        if not self._borrowed:
            self._run.finish(exit_code=int(self._status == "failed"))


def _begin(path: Path, run_id: str | None, quiet: bool) -> Any:
    import wandb

    # What W&B would record of the terminal is a live panel. Settings win over variables, so they are left out if set.
    settings: dict[str, Any] = {} if "WANDB_CONSOLE" in os.environ else {"console": "off"}
    if quiet:
        settings["silent"] = True
    try:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or path.name,
            dir=str(path),
            id=run_id,
            resume=None if run_id is None else "allow",
            settings=wandb.Settings(**settings),
        )
    except wandb.errors.Error as error:
        raise OffbeatError(
            f"W&B began no run ({type(error).__name__}: {error}); log in with `wandb login`, set WANDB_MODE=offline to "
            "write to the run's directory only, or leave wandb out of logger"
        ) from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as names with slashes."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            flat[prefix + name] = value
    return flat
