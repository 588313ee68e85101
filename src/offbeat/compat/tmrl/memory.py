"""Memories to subclass: the replay of a `TrainingOffline`. The default memory is `own_memory.ReplayMemory`."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.compat.tmrl.structures import flatten
from offbeat.compat.tmrl.util import collate_torch
from offbeat.errors import OffbeatError, UsageError

PICKLE = "data.pkl"


class Memory(ABC):
    """A memory that keeps what `append_buffer` makes of buffers, and draws `nb_steps` batches when it is iterated.

    data: an empty list, for the samples. stat_...: return and length of the newest episodes. The `Trainer` saves a
    memory through `state_dict` and `load_state_dict` where it has them, and otherwise as the buffers that it received.
    """

    def __init__(
        self,
        device: Any,
        nb_steps: int,
        sample_preprocessor: Callable[..., Any] | None = None,
        memory_size: int = 1_000_000,
        batch_size: int = 256,
        dataset_path: str = "",
        crc_debug: bool = False,
    ) -> None:
        if dataset_path and (Path(dataset_path) / PICKLE).is_file():
            raise UsageError(
                f"dataset_path={str(dataset_path)!r} has a {PICKLE}, which is not read, because nothing is unpickled "
                "here; convert it to arrays, and fill `data` in the constructor of your memory"
            )
        self.device, self.nb_steps, self.sample_preprocessor = device, nb_steps, sample_preprocessor
        self.memory_size, self.batch_size, self.crc_debug = memory_size, batch_size, crc_debug
        self.path = Path(dataset_path)
        self.data: list[Any] = []
        self.stat_train_return = self.stat_test_return = 0.0
        self.stat_train_steps = self.stat_test_steps = 0

    @abstractmethod
    def append_buffer(self, buffer: Any) -> None:
        """Takes in the samples of a `Buffer`."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of transitions that `get_transition` can give."""

    @abstractmethod
    def get_transition(self, item: int) -> Any:
        """(previous observation, action, reward, observation, terminated, truncated, info)."""

    @abstractmethod
    def collate(self, batch: list[Any], device: Any) -> Any:
        """A list of transitions without their info, as one batch of 6 parts on `device`."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.nb_steps):
            yield self.sample()

    def sample(self) -> Any:
        return self.collate([self[index] for index in self.sample_indices()], self.device)

    def sample_indices(self) -> Iterator[int]:
        """Uniform, with replacement, from Python's `random`."""
        return (random.randrange(len(self)) for _ in range(self.batch_size))

    def append(self, buffer: Any) -> None:
        if not len(buffer):
            return
        for name in ("stat_train_return", "stat_test_return", "stat_train_steps", "stat_test_steps"):
            setattr(self, name, getattr(buffer, name))
        self.append_buffer(buffer)

    def __getitem__(self, item: int) -> Any:
        *transition, info = self.get_transition(item)
        if self.crc_debug:
            _check_unchanged(tuple(transition), info)
        if self.sample_preprocessor is not None:
            transition = list(self.sample_preprocessor(*transition))
        previous, action, reward, observation, terminated, truncated = transition
        return previous, action, reward, observation, np.float32(terminated), np.float32(truncated)


class TorchMemory(Memory, ABC):
    """A `Memory` whose batches are tensors."""

    def collate(self, batch: list[Any], device: Any) -> Any:
        return collate_torch(batch, device)


def _check_unchanged(transition: tuple[Any, ...], info: Any) -> None:
    """Compares a transition with what the worker stored under crc_debug; OffbeatError where they differ."""
    if "crc_sample" not in info:
        raise UsageError("crc_debug=True of the memory needs crc_debug=True of every RolloutWorker; set both or none")
    previous, action, observation, reward, terminated, truncated = info["crc_sample"]
    sent = (previous, action, reward, observation, terminated, truncated)
    names = ("previous observation", "action", "reward", "observation", "terminated", "truncated")
    for name, theirs, ours in zip(names, sent, transition, strict=True):
        if name == "previous observation" and theirs is None:
            continue
        (first, leaves), (second, others) = flatten(theirs, name, columns=True), flatten(ours, name, columns=True)
        same = first == second and all(map(np.array_equal, leaves, others))
        if not same:
            raise OffbeatError(
                f"the {name} of step {info['crc_sample_ts']} was {theirs!r} when it was collected and is {ours!r} in "
                "the memory; correct sample_compressor or get_transition"
            )
