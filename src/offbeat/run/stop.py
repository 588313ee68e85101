"""Ctrl-C, SIGTERM and SIGHUP as a request to stop: the first is obeyed between two steps, a later one ends the run at
once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

GRACE_SECONDS = 1.0
"""Signals this soon after the first belong to it: a terminal and a wrapper (uv run, make) often both send one."""

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = tuple(each for each in (signal.SIGINT, signal.SIGTERM, HANGUP) if each is not None)


class Stop:
    """While entered in the main thread, the first signal makes `wanted` True; one after `GRACE_SECONDS` raises
    KeyboardInterrupt.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.wanted = False
        self._clock = clock
        self._first = 0.0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.wanted

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if number == HANGUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup: the run goes on when its terminal is closed
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if not self.wanted:
            self.wanted, self._first = True, now
        elif now - self._first > GRACE_SECONDS:
            raise KeyboardInterrupt
