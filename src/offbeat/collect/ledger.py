"""Which rows were counted already, by the key (worker, boot, sequence) of each chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.types import Chunk


class ChunkLedger:
    """Accepts each row once: refuses resent chunks, and counts the rows that never came.

    For each worker it keeps the boot and the sequence of the next row. A newer boot either continues the sequence or
    starts again at 0. lost: rows missing in gaps.
    """

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, int]] = {}
        self.lost = 0

    def accept(self, chunk: Chunk) -> bool:
        """Whether the chunk's rows are new; False for a resend. Raises OffbeatError if only some of them are."""
        boot, following = self._next.get(chunk.worker, (chunk.boot, 0))
        start, stop = chunk.sequence, chunk.sequence + len(chunk)
        if chunk.boot < boot:
            return False  # sent again by a process that was replaced
        if chunk.boot > boot and start < following:
            following = 0  # the new process counts from 0
        if start < following:
            if stop <= following:
                return False
            raise OffbeatError(
                f"worker {chunk.worker} sent rows {start} to {stop}, but rows up to {following} were counted already; "
                "a chunk must be resent whole, or continue where the last one ended"
            )
        self.lost += start - following
        self._next[chunk.worker] = chunk.boot, stop
        return True

    def state(self) -> dict[str, Any]:
        """For a checkpoint, as JSON."""
        return {"next": {str(worker): list(position) for worker, position in self._next.items()}, "lost": self.lost}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._next = {int(worker): (int(boot), int(row)) for worker, (boot, row) in state["next"].items()}
        self.lost = int(state["lost"])
