"""Where workers run: the protocol that `Processes` drives, and child processes as the first implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from offbeat.collect.children import Child
from offbeat.collect.restarts import Restarts
from offbeat.collect.worker import WorkerJob
from offbeat.collect.worker_process import ProcessJob
from offbeat.collect.worker_slot import WorkerSlot
from offbeat.memory import Memory
from offbeat.weights.publication import Publication
from offbeat.weights.shared import SharedWeights, weights_layout


class WorkerHandle(Protocol):
    """A worker's process, seen from the learner. pid: None while it does not run. starts: how often it was started."""

    name: str
    starts: Restarts

    @property
    def pid(self) -> int | None: ...

    @property
    def alive(self) -> bool: ...

    def supervise(self) -> str | None:
        """Starts the process if a start is due. If it has ended since the last call, returns how."""
        ...

    def receive(self) -> tuple[str, Any] | None:
        """The next message of the process, or None; never waits."""
        ...

    def signal(self, number: int) -> None:
        """Interrupts the environment's own code with this signal."""
        ...

    def kill(self) -> None: ...

    def close(self, until: float) -> None:
        """Waits until `until` (time.monotonic) for a process that was asked to stop; then kills it."""
        ...


class Host(Protocol):
    """Starts the processes of workers and carries weights to them. sleeps: seconds between two looks of `poll`."""

    sleeps: tuple[float, float]

    def publish(self, publication: Publication) -> None: ...

    def handle(self, slot: WorkerSlot[Any], job: Callable[[], WorkerJob], max_crashes: int) -> WorkerHandle:
        """The process of a slot, which `supervise` starts. job: called at each start."""
        ...

    def exchange(self, idle: bool) -> None:
        """Moves permits to workers and rows to their stores, where memory is not shared. idle: the learner waits."""
        ...

    def lost(self) -> Mapping[str, int]:
        """Data that was lost on its way to the learner, by kind."""
        ...

    def close(self) -> None: ...


class ChildProcesses:
    """Workers in child processes, which share their memory with this one."""

    sleeps = 20e-6, 500e-6

    def __init__(self) -> None:
        self._weights: SharedWeights | None = None
        self._memory: Memory | None = None  # where the weights are

    def publish(self, publication: Publication) -> None:
        if self._weights is None:
            self._layout = weights_layout(publication.weights)
            self._memory = Memory.create(SharedWeights.nbytes(self._layout))
            self._weights = SharedWeights(self._layout, self._memory.map())
        self._weights.publish(publication.version, publication.weights)

    def handle(self, slot: WorkerSlot[Any], job: Callable[[], WorkerJob], max_crashes: int) -> WorkerHandle:
        memory = self._memory
        assert memory is not None
        return Child(
            f"collector {slot.worker}",
            "offbeat.collect.worker_process",
            lambda: ProcessJob(job(), slot.memory, slot.control_memory, memory, self._layout),
            [each.descriptor for each in (slot.memory, slot.control_memory, memory)],
            max_crashes,
        )

    def exchange(self, idle: bool) -> None:
        """Nothing: workers read and write the shared memory themselves."""

    def lost(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
