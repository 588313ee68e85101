"""All that a run needs to be continued after its process was killed, in our checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from offbeat.compat.skrl.framework import logger
from offbeat.compat.skrl.memories.memory import RingMemory
from offbeat.errors import CheckpointError, UsageError
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.snapshot import Snapshot, to_json
from offbeat.types import Array, select_prefix


class ResumeFiles:
    """Checkpoints in EXPERIMENT/resume: learner, memory, environments, counters and random streams."""

    def __init__(self, experiment_dir: str) -> None:
        self._root = Path(experiment_dir).resolve() / "resume"
        self._checkpoints = Checkpoints(self._root)
        self._edits = 0  # of the memory, at the last save

    def save(self, agent: Any, timestep: int) -> None:
        """Saves the state after `timestep` steps; of a memory whose rows we write, only those that are new."""
        arrays, values = dict(agent.state_arrays()), {"timestep": timestep, **agent.state_values()}
        values["best"] = {name: agent.checkpoint_best_modules[name] for name in ("timestep", "reward")}
        shards = self._shards(agent.memory)
        if not shards:
            arrays |= _memory_arrays(agent.memory)
            values["memory"] = _indexes(agent.memory)
        elif agent.memory.edits != self._edits:
            self._checkpoints, self._edits = Checkpoints(self._root), agent.memory.edits
        if agent.environment is not None:
            own, values["environment"] = agent.environment.snapshot()
            arrays |= {f"environment/{name}": array for name, array in own.items()}
        self._checkpoints.save(Snapshot(arrays, values, {"settings": agent.settings()}), shards, timestep)

    def load(self, agent: Any) -> int:
        """Restores everything but the environments, whose state it hands to the agent; returns the timestep."""
        if not self._root.is_dir():
            raise UsageError(
                f"{self._root.parent} has no checkpoint to resume from: it is written with the agent's checkpoints "
                "(experiment.checkpoint_interval); give the experiment directory of the run, or start anew"
            )
        snapshot = self._checkpoints.load()
        arrays, values = snapshot.arrays, snapshot.values
        agent.restore_state(arrays, values)
        agent.checkpoint_best_modules.update(values["best"])
        self._load_memory(agent.memory, snapshot)
        if "environment" in values:
            agent.saved_environment = select_prefix(arrays, "environment/"), values["environment"]
        logger.info(f"resumed from {self._root.parent} at timestep {values['timestep']}")
        return int(values["timestep"])

    def _load_memory(self, memory: Any, snapshot: Snapshot) -> None:
        shards = self._shards(memory)
        if shards:
            self._checkpoints.load_replay("latest", shards)
            memory._move_indexes()
            self._edits = memory.edits
            return
        saved = select_prefix(snapshot.arrays, "memory/")
        indexes = snapshot.values["memory"]
        if isinstance(memory, RingMemory) and indexes is not None:
            for name, array in saved.items():
                memory.set_tensor_by_name(name, np.array(array))
            memory.continue_at(*indexes)
        else:
            logger.warning(f"{type(memory).__name__} is not a Memory, so its rows were not saved; it starts empty")

    @staticmethod
    def _shards(memory: Any) -> dict[str, Shard]:
        """The ring of a memory that only we write to; `sample` may be the user's own."""
        ours = isinstance(memory, RingMemory) and type(memory).add_samples is RingMemory.add_samples
        return {"0": memory.shard} if ours else {}


def _memory_arrays(memory: Any) -> dict[str, Array]:
    if not isinstance(memory, RingMemory):
        return {}
    return {f"memory/{name}": memory.arrays.get(tensor) for name, tensor in memory.tensors.items()}


def _indexes(memory: Any) -> Any:
    return [memory.memory_index, memory.env_index, memory.filled] if isinstance(memory, RingMemory) else None


def checked_as_json(name: str, module: Any, state: Any) -> Any:
    """A module's state, if JSON can hold it."""
    try:
        to_json(state)
    except (TypeError, ValueError, CheckpointError) as error:
        raise UsageError(
            f"the state of {name} ({type(module).__name__}) has more than numbers, texts, lists and dictionaries, so a "
            f"checkpoint cannot hold it: {error}; set experiment.checkpoint_interval=0, or use another scheduler"
        ) from error
    return state
