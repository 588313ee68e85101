"""TensorBoard: the same numbers as metrics.jsonl, as event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes numbers to event files in `directory`.

    purge_step: what an earlier process wrote from this step on is hidden, so that a resumed run shows no step twice.
    """

    def __init__(self, directory: Path | str, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=purge_step)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One point per name, at `step`. Names with a slash are grouped in TensorBoard's page."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, float(number), step)

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Nothing: event files hold numbers over steps only."""

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
