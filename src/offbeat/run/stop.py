"""Stop requests by Ctrl-C, SIGTERM or SIGHUP: the first stops a run between two steps, a later one ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

GRACE_SECONDS = 1.0
"""Ignores further signals for this time: a terminal and a wrapper (uv run, make) often both send one."""

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = tuple(each for each in (signal.SIGINT, signal.SIGTERM, HANGUP) if each is not None)


class Stop:
    """A context manager that handles signals, if entered in the main thread.

    The first signal sets `requested`; a signal more than `GRACE_SECONDS` later raises KeyboardInterrupt.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.requested = False
        self._clock = clock
        self._first = 0.0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == HANGUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # started with nohup: the run must survive its terminal
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if not self.requested:
            self.requested, self._first = True, now
        elif now - self._first > GRACE_SECONDS:
            raise KeyboardInterrupt
