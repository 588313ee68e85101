"""Checks that something can be sent to another process, before a process is started for it."""

from __future__ import annotations

from typing import Any

import cloudpickle

from offbeat.errors import UsageError


def check_sendable(*parts: Any) -> None:
    """Raises UsageError for a part that cloudpickle cannot send to another process."""
    for part in parts:
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise UsageError(
                f"{part} cannot be sent to a collector process: {type(error).__name__}: {error}; make what it holds "
                "(files, locks, connections) inside the factory, or use collectors=0"
            ) from error
