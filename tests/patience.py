"""Waiting in tests: so long that only what is broken exceeds it, however slow or busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 300.0


def wait_until(condition: Callable[[], object], failure: str, seconds: float = SECONDS) -> None:
    """Returns as soon as the condition holds; fails with these words when it does not come to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(failure)
        time.sleep(0.005)
