"""TensorBoard: the same numbers as metrics.jsonl, in groups, and the settings as hyper-parameters, as event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMPARED = ("eval/return", "rollout/return_100")
"""What the HParams page shows beside the hyper-parameters of each run."""


class TensorBoard:
    """Writes numbers to event files in `directory`. settings: for the HParams page.

    purge_step: what an earlier process wrote from this step on is hidden, so that a resumed run shows no step twice.
    """

    def __init__(
        self, directory: Path | str, settings: Mapping[str, Any] | None = None, purge_step: int | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=purge_step)
        if settings:
            self._write_settings(settings)

    def _write_settings(self, settings: Mapping[str, Any]) -> None:
        """As SummaryWriter.add_hparams, which would open a second run beside this one for them."""
        from torch.utils.tensorboard.summary import hparams

        values = {name: _shown(value) for name, value in settings.items() if value is not None}
        for summary in hparams(values, dict.fromkeys(COMPARED, 0.0)):
            self._writer.file_writer.add_summary(summary)  # type: ignore[attr-defined]

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point per name, at `step`. What stands before the slash of a name is its group in TensorBoard's page."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, float(number), step)

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Nothing: event files hold numbers over steps only."""

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _shown(value: Any) -> bool | int | float | str:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return " ".join(f"{key}={part}" for key, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
