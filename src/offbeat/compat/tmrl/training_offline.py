"""TrainingOffline: epochs of rounds of training steps, with samples from an interface and actors given to it."""

from __future__ import annotations

import cProfile
import functools
import itertools
import logging
import pstats
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.compat.tmrl import saving
from offbeat.compat.tmrl.arguments import check_arguments, check_class, check_interface, check_methods
from offbeat.compat.tmrl.buffer import check_buffer
from offbeat.compat.tmrl.own_agent import SACAgent
from offbeat.compat.tmrl.own_memory import ReplayMemory
from offbeat.compat.tmrl.round_statistics import RoundStatistics
from offbeat.compat.tmrl.spaces import spaces_of
from offbeat.errors import UsageError

PROFILE_LINES = 30
MEMORY_METHODS = ("append", "__len__", "__iter__")
AGENT_METHODS = ("train", "get_actor")


@dataclass(eq=False)
class TrainingOffline:
    """Trains an agent from a memory that an interface fills.

    env_cls: a class whose environment is made once, for its spaces, or the pair (observation_space, action_space).
    memory_cls: called with nb_steps=steps and device; None is our replay. training_agent_cls: called with
    observation_space, action_space and device; None is our SAC.
    epochs, rounds, steps: training steps are made in rounds of `steps`, each of which gives statistics, and a `Trainer`
    saves the agent after every epoch of `rounds`. epochs may be infinite.
    update_model_interval, update_buffer_interval: training steps between broadcasts, and between retrievals.
    max_training_steps_per_env_step: while there are more training steps per environment step, training waits, and
    retrieves samples every `sleep_between_buffer_retrieval_attempts` seconds. start_training: samples that the memory
    must hold before the first training step. profiling: print a profile of each epoch at its end.
    agent_scheduler: called with the agent and the epoch's number at the start of each. device: passed to the memory
    and to the agent.
    """

    env_cls: type | None = None
    memory_cls: type | None = None
    training_agent_cls: type | None = None
    epochs: int = 10
    rounds: int = 50
    steps: int = 2000
    update_model_interval: int = 100
    update_buffer_interval: int = 100
    max_training_steps_per_env_step: float = 1.0
    sleep_between_buffer_retrieval_attempts: float = 1.0
    profiling: bool = False
    agent_scheduler: Callable[..., Any] | None = None
    start_training: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        check_class("memory_cls", self.memory_cls, MEMORY_METHODS)
        check_class("training_agent_cls", self.training_agent_cls, AGENT_METHODS)
        spaces = dict(zip(("observation_space", "action_space"), spaces_of(self.env_cls), strict=True))
        memory_cls: Any = self.memory_cls or ReplayMemory
        if _unwrapped(memory_cls) is ReplayMemory:
            memory_cls = functools.partial(memory_cls, **spaces)
        self.memory: Any = memory_cls(nb_steps=self.steps, device=self.device)
        check_methods("memory_cls", self.memory, MEMORY_METHODS)
        if (capacity := getattr(self.memory, "memory_size", None)) is not None and capacity < self.start_training:
            raise UsageError(
                f"start_training={self.start_training} is more than the memory holds (memory_size={capacity}), so "
                "training would never start; lower it, or enlarge the memory"
            )
        own = functools.partial(SACAgent, batch_size=getattr(self.memory, "batch_size", 256))
        self.agent: Any = (self.training_agent_cls or own)(**spaces, device=self.device)
        check_methods("training_agent_cls", self.agent, AGENT_METHODS)
        self.epoch = self.total_updates = self.total_resets = 0
        self.total_samples = len(self.memory)
        self.has_received = False
        self._statistics = RoundStatistics()
        self._saved: saving.SavedTraining | None = None

    @property
    def env_steps(self) -> int:
        """Samples received, without the first of each episode, which is only a reset."""
        return self.total_samples - self.total_resets

    def update_buffer(self, interface: Any) -> None:
        """Moves the samples that the interface has received to the memory."""
        buffer = interface.retrieve_buffer()
        check_buffer(buffer)
        self.memory.append(buffer)
        if self._saved is not None:
            self._saved.received(buffer)
        self.has_received |= len(buffer) > 0
        self.total_samples += len(buffer)
        self.total_resets += getattr(buffer, "resets", 0)
        self._statistics.received(buffer)

    def _must_wait(self) -> bool:
        if self.env_steps < 1 or len(self.memory) < max(1, self.start_training):
            return True
        return self.total_updates / self.env_steps > self.max_training_steps_per_env_step

    def check_ratio(self, interface: Any) -> None:
        """Waits for samples while there are too few to train on; the time counts as idle."""
        if not self._must_wait():
            return
        start = time.monotonic()
        logging.info("waiting for samples: %d received, %d training steps", self.total_samples, self.total_updates)
        self.update_buffer(interface)
        while self._must_wait():
            time.sleep(self.sleep_between_buffer_retrieval_attempts)
            self.update_buffer(interface)
        self._statistics.idle_time += time.monotonic() - start

    def run_epoch(self, interface: Any) -> list[dict[str, float]]:
        """One epoch. Returns the statistics of each round, as numbers by name.

        interface: has `retrieve_buffer()`, which gives the samples received since the last call as a `Buffer`, and
        `broadcast_model(actor)`.
        """
        check_interface(interface)
        profile = cProfile.Profile() if self.profiling else None
        if profile is not None:
            profile.enable()
        try:
            if self.agent_scheduler is not None:
                self.agent_scheduler(self.agent, self.epoch)
            rows = [self._run_round(interface, number) for number in range(self.rounds)]
        finally:
            if profile is not None:
                profile.disable()
        if profile is not None:
            print(f"profile of epoch {self.epoch}:")
            pstats.Stats(profile).sort_stats("cumulative").print_stats(PROFILE_LINES)
        self.epoch += 1
        return rows

    def _run_round(self, interface: Any, number: int) -> dict[str, float]:
        logging.info("epoch %s of %s, round %s of %s", self.epoch, self.epochs, number, self.rounds)
        statistics = self._statistics = RoundStatistics()
        self.check_ratio(interface)
        before = time.monotonic()
        for batch in itertools.islice(iter(self.memory), self.steps):
            sampled = time.monotonic()
            if self.total_updates % self.update_buffer_interval == 0:
                self.update_buffer(interface)
            begun = time.monotonic()
            metrics = self.agent.train(batch)
            if not isinstance(metrics, Mapping):
                raise UsageError(
                    f"training_agent_cls: train returned a {type(metrics).__name__}; return a dictionary of numbers, "
                    "which may be empty"
                )
            statistics.trained(metrics, sampled - before, time.monotonic() - begun)
            self.total_updates += 1
            if self.total_updates % self.update_model_interval == 0:
                interface.broadcast_model(self.agent.get_actor())
            self.check_ratio(interface)
            before = time.monotonic()
        row = statistics.row(len(self.memory))
        logging.info("\n".join(f"  {name} {value:.6g}" for name, value in row.items()))
        return row

    # Saving, which a `Trainer` does after each epoch.

    def save(self, path: str | Path, received: Mapping[str, Any] | None = None) -> None:
        """Saves everything in the directory `path`; the checkpoint before stays until this one is whole.

        received: what the interface has to know after a resume, as JSON. Call it before the first epoch, too, unless
        the memory has `state_dict`: a memory without is saved as the buffers that it received.
        """
        if self._saved is None or self._saved.path != Path(path):
            self._saved = saving.SavedTraining(self, path)
        self._saved.save(received or {})

    def load(self, path: str | Path) -> dict[str, Any]:
        """Continues from the newest checkpoint in `path`; returns `received` of that time."""
        self._saved = saving.SavedTraining(self, path)
        return self._saved.load()


class TorchTrainingOffline(TrainingOffline):
    """`TrainingOffline` that chooses the device: with device=None, CUDA where torch sees it, else the CPU."""

    def __post_init__(self) -> None:
        if self.device is None:
            import torch

            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        super().__post_init__()


def _unwrapped(cls: Any) -> Any:
    """The class behind a partial."""
    return cls.func if isinstance(cls, functools.partial) else cls
