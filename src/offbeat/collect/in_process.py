"""The collector in the learner's own process: each poll is one vector step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offbeat.collect.collector import CollectorReport, CollectorState
from offbeat.collect.stepper import Stepper
from offbeat.errors import CheckpointError, OffbeatError
from offbeat.trace import Trace
from offbeat.types import Array, Chunk
from offbeat.weights.publication import Publication

NO_REPORT = CollectorReport()


def _never() -> bool:
    return False


class InProcess:
    """Makes one vector step per `poll`, while that is allowed and the store has room; completes a begun rollout."""

    def __init__(self, stepper: Stepper, other_rows: Callable[[], int] = int) -> None:
        self._stepper, self._other_rows = stepper, other_rows
        self._publication: Publication | None = None  # published and not loaded yet
        self._allowed, self._loaded, self._closed = -1, False, False
        self._stop: Callable[[], bool] = _never

    @property
    def num_envs(self) -> int:
        return self._stepper.num_envs

    def connect(self, *, note: Callable[[str], None], trace: Trace, stop: Callable[[], bool]) -> None:
        self._stepper.note, self._stepper.trace, self._stop = note, trace, stop

    def publish(self, publication: Publication) -> None:
        self._publication = publication

    def allow(self, steps: int) -> None:
        self._allowed = steps

    def poll(self, timeout: float) -> list[Chunk]:
        """One vector step, stored already; [] if it is not allowed, or if the store is full."""
        stepper = self._stepper
        if not stepper.ready(self._allowed):
            return []
        if self._publication is not None and (stepper.writer.may_change_weights or not self._loaded):
            stepper.load(self._publication)
            self._publication, self._loaded = None, True
        stepper.other_rows = self._other_rows()
        try:
            return [stepper.step()]
        except (KeyboardInterrupt, OffbeatError):
            if self._stop() and not stepper.vector.rebuilds:
                return []  # Ctrl-C also ended the environments that run in other processes; the run stops anyway
            raise

    def oldest_version(self) -> None:
        return None

    def snapshot(self) -> CollectorState:
        """The generator is part of the run's streams, and the weights are the learner's."""
        return CollectorState(*self._stepper.snapshot())

    def restore(self, arrays: dict[str, Array], values: dict[str, Any]) -> list[str]:
        if not values:
            return []
        if "collectors" in values:
            made = len(values["collectors"])
            raise CheckpointError(
                f"the checkpoint was made with collectors={made}, this run has 0; use the same number"
            )
        return self._stepper.restore(arrays, values)

    def report(self) -> CollectorReport:
        return NO_REPORT

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stepper.close()
