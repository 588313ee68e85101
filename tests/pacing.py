"""Who waits for whom in a run with collectors, decided by the test and not by who is faster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from offbeat.collect.processes import Processes
from offbeat.collect.rollout_processes import QueueSlot
from patience import wait_until


class Gated(gymnasium.Env[Any, Any]):
    """Before step `every`, 2 x `every`, ... it waits until `gate` has one byte, two, ...: see `Opening`.

    seconds: how long each step takes besides.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, gate: Path | None = None, every: int = 1, seconds: float = 0.0) -> None:
        self._gate, self._every, self._seconds, self._steps = gate, every, seconds, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        wanted, self._steps = self._steps // self._every, self._steps + 1
        if self._gate is not None:
            wait_until(lambda: self._opened() >= wanted, f"the gate was not opened {wanted} times")
        time.sleep(self._seconds)
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def _opened(self) -> int:
        assert self._gate is not None
        return self._gate.stat().st_size if self._gate.exists() else 0


class Opening:
    """A callback that opens a gate at each chunk, or with `updates` whenever so many more updates are made."""

    def __init__(self, gate: Path, updates: int = 0) -> None:
        self._gate, self._every, self._opened = gate, updates, 0

    def on_chunk(self, event: Any) -> None:
        if not self._every:
            self._open(1)

    def on_update(self, event: Any) -> None:
        if self._every:
            self._open(event.updates // self._every - self._opened)

    def _open(self, times: int) -> None:
        self._opened += times
        with self._gate.open("ab") as file:
            file.write(b"." * times)


class Holding:
    """A callback that lets the learner go on only when every collector has gone as far ahead as it may.

    That is to the end of its permits or, with rollouts, until its queue is full, or has dropped one where it does that.
    rows, lags: of every chunk, and how many updates behind the learner who acted was.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[dict[str, np.ndarray]] = []
        self.lags: list[int] = []
        self._places: list[Any] = []
        self._dropped: dict[int, int] = {}
        load = Processes.publish

        def noted(processes: Any, *arguments: Any) -> None:
            self._places = processes._slots
            load(processes, *arguments)

        monkeypatch.setattr(Processes, "publish", noted)

    def on_chunk(self, event: Any) -> None:
        self.rows.append({name: np.array(column) for name, column in event.chunk.columns.items()})
        self.lags.append(event.updates - int(self.rows[-1]["version"][0]))
        self._hold()

    def on_update(self, event: Any) -> None:
        self._hold()

    def _hold(self) -> None:
        for place in self._places:
            wait_until(lambda place=place: self._far_enough(place), f"{place.child.name} does not go on")
            if isinstance(place, QueueSlot):
                self._dropped[place.worker] = place.store.counts().dropped

    def _far_enough(self, place: Any) -> bool:
        if not isinstance(place, QueueSlot):
            return place.control.calls >= place.control.permit
        counts, plan = place.store.counts(), place.plan
        if plan.when_full == "block":
            return counts.full == plan.slots
        return counts.dropped > self._dropped.get(place.worker, 0)
