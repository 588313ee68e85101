"""The checkpoints of a training: the agent, the memory, the counters and the random streams, without pickle.

PATH/checkpoints, PATH/replay: as of a run. PATH/buffers: the buffers that a memory without `state_dict` received.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable
from offbeat.compat.tmrl.buffer_log import BufferLog
from offbeat.compat.tmrl.structures import flatten, rebuild
from offbeat.errors import CheckpointError, UsageError
from offbeat.run.checkpoint import Checkpoints, Snapshot
from offbeat.types import Array

KIND = "tmrl"
_COUNTERS = ("epoch", "total_updates", "total_samples", "total_resets")


def has_checkpoint(path: str | Path) -> bool:
    """Whether `path` has a checkpoint; UsageError where it is something else."""
    path = Path(path)
    if path.is_file():
        raise UsageError(
            f"checkpoint_path={str(path)!r} is a file, but a checkpoint is a directory; pass another path. A file that "
            "tmrl pickled cannot be read"
        )
    return (path / "checkpoints" / "latest").is_file()


class SavedTraining:
    """Saves a training in a directory, and loads it. The object knows what is on disk: a save writes what is new."""

    def __init__(self, training: Any, path: str | Path) -> None:
        self.path = Path(path)
        has_checkpoint(self.path)
        self._training, memory = training, training.memory
        _check_saved("training_agent_cls", training.agent)
        self._checkpoints = Checkpoints(self.path.resolve())
        self._log: BufferLog | None = None
        if not _is_saved(memory):
            if training.has_received:
                raise UsageError(
                    f"memory_cls: {type(memory).__name__} has no state_dict and load_state_dict, and samples were "
                    "received before the first save; add both, or save before the first epoch"
                )
            self._log = BufferLog(self.path.resolve() / "buffers", getattr(memory, "memory_size", None))

    def received(self, buffer: Any) -> None:
        if self._log is not None:
            self._log.add(buffer)

    def save(self, received: Mapping[str, Any]) -> None:
        training = self._training
        durable.make_directory(self.path.resolve())
        arrays: dict[str, Array] = {}
        values: dict[str, Any] = {name: getattr(training, name) for name in _COUNTERS}
        values |= {"kind": KIND, "received": dict(received), "random": _random_state(arrays)}
        values["agent"] = _put(training.agent.state_dict(), "the agent's state_dict", "agent", arrays)
        if self._log is None:
            values["memory"] = _put(training.memory.state_dict(), "the memory's state_dict", "memory", arrays)
        else:
            values["buffers"] = self._log.save()
        shards = getattr(training.memory, "shards", {})
        self._checkpoints.save(Snapshot(arrays, values), shards, training.total_updates)
        if self._log is not None:
            self._log.remove_old()

    def load(self) -> dict[str, Any]:
        training, snapshot = self._training, self._checkpoints.load("latest")
        values, arrays = snapshot.values, snapshot.arrays
        if values.get("kind") != KIND:
            raise CheckpointError(f"{self.path} holds the checkpoint of a run, not of a TrainingOffline; pass another")
        if ("buffers" in values) != (self._log is not None):
            raise CheckpointError(
                f"{self.path} was saved with {'another' if self._log is None else 'a'} memory that has "
                f"{'no ' if self._log is None else ''}state_dict; resume with the memory_cls of that time"
            )
        training.agent.load_state_dict(_get(values["agent"], "agent", arrays, self.path))
        if self._log is not None:
            for buffer in self._log.load(values["buffers"]):
                training.memory.append(buffer)
        else:
            training.memory.load_state_dict(_get(values["memory"], "memory", arrays, self.path))
            if shards := getattr(training.memory, "shards", {}):
                self._checkpoints.load_replay("latest", shards)
        for name in _COUNTERS:
            setattr(training, name, int(values[name]))
        _restore_random(values["random"], arrays)
        return dict(values["received"])


def _is_saved(part: Any) -> bool:
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def _check_saved(name: str, part: Any) -> None:
    if not _is_saved(part):
        raise UsageError(
            f"{name}: {type(part).__name__} has no state_dict and load_state_dict, and nothing is pickled here; add "
            "both, or pass dump_run_instance_fn and load_run_instance_fn to the Trainer, or checkpoint_path=None"
        )


def _put(value: Any, where: str, prefix: str, arrays: dict[str, Array]) -> Any:
    """Adds the arrays of a value under a prefix; returns its structure."""
    structure, found = flatten(value, where)
    arrays |= {f"{prefix}/{index}": array for index, array in enumerate(found)}
    return structure


def _get(structure: Any, prefix: str, arrays: Mapping[str, Array], path: Path) -> Any:
    count = sum(name.startswith(f"{prefix}/") for name in arrays)
    return rebuild(structure, [arrays[f"{prefix}/{index}"] for index in range(count)], f"{path} ({prefix})")


def _random_state(arrays: dict[str, Array]) -> dict[str, Any]:
    """The state of the random generators that a user's memory and agent may use: of Python, NumPy and torch."""
    import torch

    arrays["random/torch"] = torch.get_rng_state().numpy()
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    arrays["random/numpy"] = np.asarray(keys)
    return {"python": random.getstate(), "numpy": [kind, *rest]}


def _restore_random(state: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    import torch

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, *rest = state["numpy"]
    np.random.set_state((kind, np.array(arrays["random/numpy"]), *rest))  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(np.array(arrays["random/torch"])))
