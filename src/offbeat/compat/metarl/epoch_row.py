"""The numbers of one epoch, by name, until the runner writes them to its log."""

from __future__ import annotations

from typing import Any


class Tabular:
    """Collects the row of an epoch."""

    def __init__(self) -> None:
        self._row: dict[str, Any] = {}

    def record(self, key: str, value: Any) -> None:
        """The last value under a key is in the epoch's row."""
        self._row[key] = value

    def take(self) -> dict[str, Any]:
        """The row; the next one begins empty."""
        row, self._row = self._row, {}
        return row


tabular = Tabular()
