"""TensorBoard event files: the metrics of metrics.jsonl in groups, and the settings as hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMPARED = ("eval/return", "rollout/return_100")
"""The metrics that the HParams page shows for each run."""


class TensorBoard:
    """Writes numbers to event files in `directory`. settings: for the HParams page.

    purge_step: hides points of an earlier process from this step on, so that a resumed run shows no step twice.
    """

    def __init__(
        self, directory: Path | str, settings: Mapping[str, Any] | None = None, purge_step: int | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=purge_step)
        if settings:
            self._write_settings(settings)

    def _write_settings(self, settings: Mapping[str, Any]) -> None:
        """Like SummaryWriter.add_hparams, but in the same run; that method creates a second run."""
        from torch.utils.tensorboard.summary import hparams

        values = {name: _as_hparam(value) for name, value in settings.items() if value is not None}
        for summary in hparams(values, dict.fromkeys(COMPARED, 0.0)):
            self._writer.file_writer.add_summary(summary)  # type: ignore[attr-defined]

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes one point per name at `step`. The part of a name before the slash is its group in TensorBoard."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, float(number), step)

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Does nothing, because event files hold only numbers over steps."""

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _as_hparam(value: Any) -> bool | int | float | str:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return " ".join(f"{key}={part}" for key, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
