"""A collector as a user would write one: it steps its environments in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from offbeat.collect import CollectorContext, CollectorReport, CollectorState
from offbeat.trace import Trace
from offbeat.types import Array, Chunk
from offbeat.weights.publication import Publication


class BackgroundThread:
    """Everything that it shares with its thread is used under one lock, which the thread holds during a step."""

    def __init__(self, context: CollectorContext) -> None:
        self.num_envs = context.num_envs
        self._stepper = context.stepper()
        self._lock, self._thread = threading.Condition(), threading.Thread(target=self._run, daemon=True)
        self._chunks: list[Chunk] = []
        self._publication: Publication | None = None
        self._error: BaseException | None = None
        self._allowed, self._started, self._closed = -1, False, False

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None:
        self._stepper.note, self._stepper.trace = note, trace

    def publish(self, publication: Publication) -> None:
        with self._lock:
            self._publication = publication
        if not self._started:
            self._started = True
            self._thread.start()

    def allow(self, steps: int) -> None:
        with self._lock:
            self._allowed = steps
            self._lock.notify_all()

    def poll(self, timeout: float) -> list[Chunk]:
        with self._lock:
            self._lock.wait_for(lambda: self._chunks or self._error, timeout)
            if self._error is not None:
                raise self._error
            chunks, self._chunks = self._chunks, []
            return chunks

    def _run(self) -> None:
        try:
            while self._step_when_ready():
                pass
        except BaseException as error:
            with self._lock:
                self._error = error
                self._lock.notify_all()

    def _step_when_ready(self) -> bool:
        stepper = self._stepper
        with self._lock:
            if self._closed:
                return False
            if not stepper.ready(self._allowed):
                self._lock.wait(0.01)
                return True
            if self._publication is not None and stepper.writer.may_change_weights:
                stepper.load(self._publication)
                self._publication = None
            self._chunks.append(stepper.step())
            self._lock.notify_all()
            return True

    def oldest_version(self) -> int | None:
        with self._lock:
            waiting = [int(chunk.columns["version"][0]) for chunk in self._chunks if len(chunk)]
            return min([self._stepper.version, *waiting])

    def snapshot(self) -> CollectorState:
        with self._lock:
            chunks, self._chunks = self._chunks, []
            return CollectorState(*self._stepper.snapshot(), chunks)

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        return self._stepper.restore(arrays, values)

    def report(self) -> CollectorReport:
        return CollectorReport()

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        if self._started:
            self._thread.join()
        self._stepper.close()
