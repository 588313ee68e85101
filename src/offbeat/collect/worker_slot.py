"""What stays of a worker when its process ends and another one continues: store, control block, environments."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from offbeat.collect.control import Control
from offbeat.errors import UsageError
from offbeat.memory import Memory
from offbeat.replay.stores import Store, StorePlan
from offbeat.types import Array

if TYPE_CHECKING:
    from offbeat.collect.hosts import WorkerHandle

WorkerState = tuple[dict[str, Array], dict[str, Any]]
"""Where a worker stands between two steps, as arrays and JSON values."""

SomeStore = TypeVar("SomeStore", bound=Store)


@dataclass(eq=False)
class WorkerSlot(ABC, Generic[SomeStore]):
    """A worker, whichever process does its work.

    memory: shared, with the store that `plan` describes. stored_at_start: what `stored` was when the process started.
    state: where the next process continues. interruptions: of the environment, since the process last moved. polled:
    rows that `poll` or `snapshot` has returned. earlier_boots: processes started before this run was resumed. boots:
    the first row or rollout of each process, and its number, oldest first. infos: final infos by environment and
    episode, of episodes that were not received yet.
    """

    worker: int
    first_env: int
    num_envs: int
    plan: StorePlan
    store: SomeStore
    memory: Memory
    control: Control
    control_memory: Memory
    stored_at_start: int = 0
    state: WorkerState | None = None
    interruptions: int = 0
    polled: int = 0
    earlier_boots: int = 0
    boots: list[tuple[int, int]] = field(default_factory=list)
    infos: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    closed: bool = False
    child: WorkerHandle = field(init=False, repr=False)

    @classmethod
    def create(cls, worker: int, first_env: int, num_envs: int, plan: StorePlan) -> Self:
        """A slot with shared memory for its store, and for a control block of which no episode has begun."""
        try:
            memory = Memory.create(plan.nbytes)
        except (OSError, OverflowError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # there is memory, but no file descriptor is left
            raise UsageError(f"{plan} needs {plan.nbytes / 2**30:,.1f} GiB of memory: {error}; use less") from error
        try:
            control_memory = Memory.create(Control.nbytes(num_envs))
        except BaseException:
            memory.close()
            raise
        control, store = Control(num_envs, control_memory.map()), cast(SomeStore, plan.open(memory.map()))
        control.next_episodes[:] = -1
        return cls(worker, first_env, num_envs, plan, store, memory, control, control_memory)

    @property
    @abstractmethod
    def stored(self) -> int:
        """Rows or rollouts that are stored completely."""

    def started(self) -> int:
        """Called when another process starts; returns its number, how often the worker was started."""
        self.stored_at_start = self.stored
        boot = self.earlier_boots + self.child.starts.boots + 1
        self.boots = [each for each in self.boots if each[0] < self.stored] + [(self.stored, boot)]
        return boot

    def boot_of(self, position: int) -> tuple[int, int | None]:
        """The boot that made a row or rollout, and where the next boot begins, if there is one."""
        found, until = self.earlier_boots, None
        for start, boot in self.boots:
            if start > position:
                until = start
                break
            found = boot
        return found, until

    def close(self) -> None:
        """Closes the descriptors; what is mapped stays."""
        if not self.closed:
            self.closed = True
            self.memory.close()
            self.control_memory.close()
