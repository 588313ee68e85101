"""Batches of sequences for recurrent models, from our ring or from a user's own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offbeat.compat.skrl.agents.sac.draws import NAMES
from offbeat.compat.skrl.memories.memory import CORE_NAMES
from offbeat.compat.skrl.memories.random import RandomRows
from offbeat.errors import UsageError
from offbeat.replay.environment_rows import EnvironmentRows
from offbeat.replay.shard import Shard
from offbeat.types import Array, Batches

ENVIRONMENTS = "environments"
"""The tensor of a memory that says which environment a row is of."""
FLAGS = ("terminated", "truncated")


class SequenceDraws:
    """Draws sequences of `length` consecutive steps of one environment, each as likely as any other.

    From a `RandomMemory` of ours they never reach across the newest row; of any other memory, `sample` draws them.
    Batches have the rows of one sequence after the other (row b * L + t), and besides the columns of single transitions
    the flags of episode ends, and the states before each step, (K, B * L, layers, hidden), under their tensors' names.
    names: of the states' tensors. stack, alive: as of `Draws`.
    """

    def __init__(
        self,
        memory: Any,
        rng: np.random.Generator,
        dtype: type[np.floating],
        length: int,
        names: Sequence[str],
        stack: Callable[[Sequence[Any]], Any],
        alive: Callable[[Any], Any],
    ) -> None:
        self._memory, self._rng, self._dtype, self._length = memory, rng, dtype, length
        self._names, self._stack, self._alive = tuple(names), stack, alive
        self._is_ours = isinstance(memory, RandomRows) and type(memory).sample is RandomRows.sample
        self._order: EnvironmentRows | None = None
        self._made_for: Shard | None = None

    def ready(self) -> bool:
        """Whether a sequence can be drawn; of a user's own memory, whether it holds as many rows."""
        if not self._is_ours:
            return not hasattr(self._memory, "__len__") or len(self._memory) >= self._length
        return len(self._memory) > 0 and len(self._starts()) > 0

    def __call__(self, count: int, batch_size: int, gamma: float) -> Batches:
        """Batches for `count` updates. With fewer sequences in memory than in a batch, some are in it twice."""
        if not self._is_ours:
            return self._sampled(count, batch_size, gamma)
        return self._read(self._rows(count, batch_size), gamma)

    def _starts(self) -> Array:
        """All rows of the ring that a sequence can begin at."""
        if self._order is None or self._made_for is not self._memory.shard:
            self._made_for = self._memory.shard
            self._order = EnvironmentRows(self._made_for, self._length)
        self._order.update()
        held = np.arange(self._made_for.oldest, self._order.newest_start + 1)
        return held[self._order.can_begin(held)]

    def _rows(self, count: int, batch_size: int) -> Array:
        """The rows (K, B * L) of the ring that are drawn."""
        starts = self._starts() if len(self._memory) else ()
        if not len(starts):
            raise UsageError(
                f"update: the memory holds {len(self._memory)} rows, and in them no {self._length} consecutive steps "
                f"of one environment (sequence_length={self._length}); record more transitions first"
            )
        assert self._order is not None
        again = self._memory.replacement or len(starts) < batch_size
        chosen = [self._rng.choice(len(starts), batch_size, replace=again) for _ in range(count)]
        runs = self._order.runs(starts[np.concatenate(chosen)])
        return np.ascontiguousarray(runs.T).reshape(count, -1)

    def _read(self, rows: Array, gamma: float) -> Batches:
        shard = self._memory.shard
        names = [name for name in (*NAMES, *FLAGS, *self._names) if name in self._memory.get_tensor_names()]
        fields = {name: CORE_NAMES.get(name, f"own/{name}") for name in names}
        found = {name: shard.column(field)[rows % shard.capacity] for name, field in fields.items()}
        own = {name: found[name] for name in (*FLAGS, *self._names)}
        columns = {CORE_NAMES[name]: found[name] for name in NAMES if name in found and name != "terminated"}
        columns["discount"] = self._dtype(gamma) * ~found["terminated"]
        return Batches(columns | own, rows)

    def _sampled(self, count: int, batch_size: int, gamma: float) -> Batches:
        """The batches of a user's own memory, which `sample` gives for names in the order in which it gets them."""
        names = list(dict.fromkeys((*NAMES, *FLAGS, *self._names)))
        options = {"batch_size": batch_size, "sequence_length": self._length}
        samples = [self._memory.sample(names=names, **options)[0] for _ in range(count)]
        pairs = zip(names, zip(*samples, strict=True), strict=True)
        found = {name: self._stack(column) for name, column in pairs if column[0] is not None}
        missing = [name for name in names if name not in found and "states" not in name]
        if missing:
            raise UsageError(f"the memory's sample gave nothing for {missing[0]!r}; return a tensor for each name")
        shape = found["rewards"].shape[:2]
        if shape[1] % self._length:
            raise UsageError(
                f"the memory's sample gave {shape[1]} rows, which are no sequences of sequence_length={self._length}; "
                "return the rows of one sequence after the other"
            )
        flags = {name: found[name].reshape(shape) for name in FLAGS}
        columns = {CORE_NAMES[name]: found[name] for name in NAMES if name in found and name != "terminated"}
        columns |= {"reward": found["rewards"].reshape(shape), "discount": gamma * self._alive(flags["terminated"])}
        return Batches(columns | flags | {name: found[name] for name in self._names}, np.zeros(shape, np.int64))
