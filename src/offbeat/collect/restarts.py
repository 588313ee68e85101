"""When a process that has ended is started again, and when that would be of no use."""

from __future__ import annotations

import time

from offbeat.errors import ProcessFault

FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0
"""Seconds before a restart: the first, and the most."""


class Restarts:
    """Counts the starts and crashes of one process. Each restart waits twice as long, until there is progress.

    max_crashes: crashes in a row, without progress, that end the run.
    """

    def __init__(self, name: str, max_crashes: int) -> None:
        self._name, self._max_crashes, self._start_at = name, max_crashes, 0.0
        self.boots = self.crashes_in_a_row = 0

    @property
    def count(self) -> int:
        return max(0, self.boots - 1)

    @property
    def due(self) -> bool:
        """Whether the process may be started now."""
        return time.monotonic() >= self._start_at

    def progressed(self) -> None:
        """Resets the count of crashes in a row."""
        self.crashes_in_a_row = 0

    def postpone(self, seconds: float) -> None:
        """Starts the process later: it did not begin, which was no fault of its own."""
        self._start_at = time.monotonic() + seconds

    def ended(self, how: str, traceback: str, permanent: bool) -> str:
        """Counts a crash and returns the report of it; raises ProcessFault if a restart would be of no use."""
        self.crashes_in_a_row += 1
        self._start_at = time.monotonic() + min(LONGEST_DELAY, FIRST_DELAY * 2 ** (self.crashes_in_a_row - 1))
        report = f"{self._name} {how}" + (f":\n{traceback}" if traceback else "")
        if permanent or self.crashes_in_a_row >= self._max_crashes:
            reason = (
                "a restart cannot fix this"
                if permanent
                else f"it crashed {self.crashes_in_a_row} times in a row without any progress"
            )
            raise ProcessFault(
                f"{report}\n{self._name}: {reason}. Fix the error above and resume; `offbeat check-env` finds faults "
                "of environments"
            )
        return report
