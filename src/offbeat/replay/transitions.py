"""Transitions by the keys of their rows, over every shard of a replay: one step, or n steps folded into one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offbeat.memory import fence
from offbeat.replay.nstep import Links, follow, n_step
from offbeat.replay.shard import Shard
from offbeat.types import Array, Schema

WORKER_SHIFT = 48
"""A row's key is `worker << WORKER_SHIFT | sequence`: with worker 0, the sequence itself."""

_NEEDED = {"obs": "float32", "action": "float32", "reward": "float32", "next_obs": "float32", "terminated": "bool"}
_OF_THE_ROW = ("reward", "terminated", "truncated", "version", "env", "episode", "step")
"""Fields that a batch does not carry as they are."""

Held = list[tuple[int, int]]
"""Of each shard, in order: the oldest row that is held, and one past the newest."""
_Part = tuple[Array, Array, Array, Array]
"""First rows (B,), reward (B,), discount (B,), and the rows (B,) whose next observation is bootstrapped."""


def split_keys(keys: Array) -> tuple[Array, Array]:
    """The worker of each row, and its sequence in the worker's shard, where it is stored at sequence % capacity."""
    workers = keys >> WORKER_SHIFT
    return workers, keys - (workers << WORKER_SHIFT)


class TransitionReader:
    """Reads transitions from shards that collectors may be writing to at the same time.

    With n_step > 1 a transition spans up to n steps of its episode; at the write head it spans those that are there.
    dtype: of discounts and sums of rewards. carry: further fields of the first row, such as truncated, as they are. A
    replay asks what is `held`, chooses among it, and `read`s the choice.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        dtype: type[np.floating] = np.float32,
        carry: Sequence[str] = (),
    ) -> None:
        if n_step < 1:
            raise ValueError(f"n_step={n_step} folds no step; it must be at least 1")
        if unknown := [name for name in carry if name not in schema.names or name == "reward"]:
            raise ValueError(f"carry={unknown[0]!r} is no field that a row could carry besides its reward")
        dtypes = {field.name: field.dtype for field in schema}
        if missing := [name for name, dtype in _NEEDED.items() if dtypes.get(name) != dtype]:
            name, needed = missing[0], ", ".join(f"{name} ({dtype})" for name, dtype in _NEEDED.items())
            raise ValueError(f"the rows have no {_NEEDED[name]} field {name!r}; transitions need {needed}")
        self.schema, self.n_step, self.gamma = schema, n_step, gamma
        self.shards: list[Shard] = []
        self._links: dict[int, Links] = {}
        self._row, self._discount = schema.row, dtype(gamma)
        names = [name for name in schema.row.names or () if name not in _OF_THE_ROW or name in carry]
        self.first_names = [name for name in names if not name.startswith("next_")]
        self.last_names = [name for name in names if name.startswith("next_")]

    def attach(self, shard: Shard) -> None:
        """Adds a shard, at any time."""
        if shard.schema != self.schema:
            raise ValueError("the shard's rows have other fields than replay's; all shards must have one schema")
        if any(other.worker == shard.worker for other in self.shards):
            raise ValueError(f"worker {shard.worker} has a shard already; each worker has one")
        self.shards.append(shard)
        if self.n_step > 1:
            self._links[shard.worker] = Links(shard)

    def __len__(self) -> int:
        return sum(shard.size for shard in self.shards)

    def held(self) -> Held:
        held = [(shard.oldest, shard.committed) for shard in self.shards]
        fence()
        return held

    def keys(self, held: Held, positions: Array) -> Array:
        """The keys of rows by their position (B,) among all that are held, shard after shard."""
        if len(held) == 1:
            return positions + (held[0][0] + (self.shards[0].worker << WORKER_SHIFT))
        sizes = [max(0, committed - oldest) for oldest, committed in held]
        starts = np.cumsum([0, *sizes])
        which = np.searchsorted(starts[1:], positions, side="right")
        first = np.array([oldest for oldest, _ in held]) + [shard.worker << WORKER_SHIFT for shard in self.shards]
        return positions - starts[which] + first[which]

    def read(self, keys: Array, held: Held, shape: tuple[int, ...]) -> dict[str, Array] | None:
        """The columns of the transitions that start at these rows (B,), each reshaped to (*shape, ...).

        None where a writer has reached one of the rows in the meantime: it may be half overwritten; choose again.
        The arrays are the caller's own.
        """
        if len(self.shards) == 1:
            shard, (_, committed) = self.shards[0], held[0]
            first, reward, discount, last = self._part(shard, keys - (shard.worker << WORKER_SHIFT), committed)
        else:
            first, reward, discount, last = self._mixed(keys, held)
        if self.overtaken(keys, held):
            return None
        first, last = first.reshape(shape), last.reshape(shape)
        columns = {name: first[name] for name in self.first_names}
        columns["reward"], columns["discount"] = reward.reshape(shape), discount.reshape(shape)
        return columns | {name: last[name] for name in self.last_names}

    def overtaken(self, keys: Array, held: Held) -> bool:
        """Whether a gathered row may be torn. First rows decide for whole chains: a successor is never older."""
        fence()
        for shard, (oldest, _) in zip(self.shards, held, strict=True):
            if (now := shard.oldest) != oldest:
                start = shard.worker << WORKER_SHIFT
                if ((keys >= start) & (keys < start + now)).any():
                    return True
        return False

    def _mixed(self, keys: Array, held: Held) -> _Part:
        """Splits the keys over the shards and puts the parts back in their order."""
        workers, sequences = split_keys(keys)
        first, reward = np.empty(len(keys), self._row), np.empty(len(keys), self._discount.dtype)
        last, discount = first if self.n_step == 1 else np.empty_like(first), np.empty_like(reward)
        whole = np.dtype((np.void, self._row.itemsize))  # rows as bytes: NumPy would assign them field by field
        for shard, (_, committed) in zip(self.shards, held, strict=True):
            places = np.flatnonzero(workers == shard.worker)
            if len(places) == 0:
                continue
            from_first, reward[places], discount[places], from_last = self._part(shard, sequences[places], committed)
            first.view(whole)[places] = from_first.view(whole)
            if last is not first:
                last.view(whole)[places] = from_last.view(whole)
        return first, reward, discount, last

    def _part(self, shard: Shard, rows: Array, committed: int) -> _Part:
        first = shard.gather(rows)
        if self.n_step == 1:
            return first, first["reward"], self._discount * ~first["terminated"], first
        links = self._links[shard.worker]
        links.update()
        chain, cut = follow(links.successor, rows, self.n_step, committed)
        places = chain % shard.capacity
        reward, terminated, truncated = (shard.column(name)[places] for name in ("reward", "terminated", "truncated"))
        reward = reward.astype(self._discount.dtype, copy=False)
        total, discount, last = n_step(reward, terminated, truncated | cut, self.gamma)
        return first, total, discount, shard.gather(chain[last, np.arange(len(rows))])
