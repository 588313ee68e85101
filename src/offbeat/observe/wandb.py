"""Weights & Biases: the metrics of metrics.jsonl in groups, over environment steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.errors import OffbeatError

PROJECT = "offbeat"
"""The default project, if WANDB_PROJECT is not set."""


class WeightsAndBiases:
    """Sends numbers to a W&B run for the run in `path`. W&B's environment variables (WANDB_MODE, ...) configure it.

    The id of the W&B run is saved in `path`, so that a resumed run continues it. If the program already has an open
    W&B run (its own, or of a sweep), that one is used and stays open.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], quiet: bool = False) -> None:
        import wandb

        id_file = path / "wandb" / "id"
        durable.check_inside(id_file, path)
        self._external_run = wandb.run is not None
        run_id = id_file.read_text().strip() if id_file.is_file() else None
        self._run: Any = wandb.run or _start_run(path, run_id, quiet)
        id_file.parent.mkdir(exist_ok=True)
        durable.write_file(id_file, f"{self._run.id}\n".encode())
        self._run.config.update(dict(settings), allow_val_change=True)
        self._names: set[str] = set()
        self._status = ""

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs one point per name. `step` is the x axis, because W&B's own step counter cannot go back on resume."""
        for name in numbers.keys() - self._names:
            self._run.define_metric(name, step_metric="step")
            self._names.add(name)
        self._run.log({"step": step, **numbers})

    def summarise(self, summary: Mapping[str, Any]) -> None:
        self._status = str(summary["status"])
        self._run.summary.update(_flat(summary))

    def close(self) -> None:
        if not self._external_run:
            self._run.finish(exit_code=int(self._status == "failed"))


def _start_run(path: Path, run_id: str | None, quiet: bool) -> Any:
    import wandb

    # "off": W&B would record the live panel. A setting overrides the variable, so it is left out if that is set.
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
            f"W&B could not start a run ({type(error).__name__}: {error}); log in with `wandb login`, set "
            "WANDB_MODE=offline to write to the run's directory only, or leave wandb out of logger"
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
