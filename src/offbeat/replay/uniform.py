"""Batches of transitions, every held row equally likely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offbeat.memory import fence
from offbeat.replay.links import Links
from offbeat.replay.nstep import follow, n_step
from offbeat.replay.shard import Shard
from offbeat.types import Array, Transitions

SHARD_SHIFT = 48
"""`Transitions.rows` holds `shard << SHARD_SHIFT | sequence`: with one shard, the sequence itself."""

_FIELDS = {"obs": "float32", "action": "float32", "reward": "float32", "next_obs": "float32", "terminated": "bool"}
_Part = tuple[Array, Array, Array, Array]
"""First rows (B,), reward (B,), discount (B,), and the rows (B,) whose next observation is bootstrapped."""


class Uniform:
    """Samples rows with replacement over everything that the shards hold, each shard in proportion to its rows.

    With n_step > 1 a transition spans up to n steps of its episode; at the write head it spans those that are there.
    dtype: of what is computed from gamma, discounts and sums of rewards.
    """

    def __init__(
        self, shards: Sequence[Shard], *, n_step: int = 1, gamma: float = 0.99, dtype: type[np.floating] = np.float32
    ) -> None:
        if not shards:
            raise ValueError("there is no shard to sample from; give at least one")
        if n_step < 1:
            raise ValueError(f"n_step={n_step} folds no step; it must be at least 1")
        schema = shards[0].schema
        if any(shard.schema != schema for shard in shards):
            raise ValueError("the shards' rows have different fields; all shards must have one schema")
        dtypes = {field.name: field.dtype for field in schema}
        if missing := [name for name, dtype in _FIELDS.items() if dtypes.get(name) != dtype]:
            name, needed = missing[0], ", ".join(f"{name} ({dtype})" for name, dtype in _FIELDS.items())
            raise ValueError(f"the rows have no {_FIELDS[name]} field {name!r}; transitions need {needed}")
        self.shards, self.n_step, self.gamma = tuple(shards), n_step, gamma
        self._links = {id(shard): Links(shard) for shard in shards} if n_step > 1 else {}
        self._has_mask = "mask" in dtypes
        self._has_state, self._row, self._discount = "state" in dtypes, schema.row, dtype(gamma)

    def __len__(self) -> int:
        return sum(shard.size for shard in self.shards)

    def sample(self, rng: np.random.Generator, batch_size: int) -> Transitions:
        """A batch of B transitions; the arrays share one gathered batch, which is the caller's own."""
        while True:
            held = [(shard.oldest, shard.committed) for shard in self.shards]
            fence()
            sizes = [max(0, committed - oldest) for oldest, committed in held]
            total = sum(sizes)
            if total == 0:
                raise ValueError("replay holds no rows yet; collect before sampling")
            # `rng.integers` takes longer to begin than to draw a batch; 53 random bits are as even over any ring.
            draw = (rng.random(batch_size) * total).astype(np.int64)
            if len(sizes) == 1:
                rows = draw + held[0][0]
                part = self._part(self.shards[0], rows, held[0][1])
            else:
                rows, part = self._mixed(draw, held, sizes)
            if not self._overtaken(rows, held):
                return self._transitions(part, rows)

    def _overtaken(self, rows: Array, held: list[tuple[int, int]]) -> bool:
        """Whether a writer reached a gathered row meanwhile: it may be half overwritten, and the batch is drawn anew.

        First rows decide for whole chains, because a successor is never older.
        """
        fence()
        for index, (shard, (oldest, _)) in enumerate(zip(self.shards, held, strict=True)):
            if (now := shard.oldest) != oldest:
                base = index << SHARD_SHIFT
                if ((rows >= base) & (rows < base + now)).any():
                    return True
        return False

    def _mixed(self, draw: Array, held: list[tuple[int, int]], sizes: list[int]) -> tuple[Array, _Part]:
        """Splits the draws over the shards and puts the answers back in the order of the draws."""
        ends = np.cumsum(sizes)
        which = np.searchsorted(ends, draw, side="right")
        rows = np.empty_like(draw)
        first, reward = np.empty(len(draw), self._row), np.empty(len(draw), self._discount.dtype)
        last, discount = first if self.n_step == 1 else np.empty_like(first), np.empty_like(reward)
        whole = np.dtype((np.void, self._row.itemsize))  # rows as they are: NumPy would assign them field by field
        for index, shard in enumerate(self.shards):
            places = np.flatnonzero(which == index)
            if len(places) == 0:
                continue
            oldest, committed = held[index]
            sequence = draw[places] - (ends[index] - sizes[index]) + oldest
            rows[places] = sequence | (index << SHARD_SHIFT)
            from_first, reward[places], discount[places], from_last = self._part(shard, sequence, committed)
            first.view(whole)[places] = from_first.view(whole)
            if last is not first:
                last.view(whole)[places] = from_last.view(whole)
        return rows, (first, reward, discount, last)

    def _part(self, shard: Shard, rows: Array, committed: int) -> _Part:
        first = shard.gather(rows)
        if self.n_step == 1:
            return first, first["reward"], self._discount * ~first["terminated"], first
        links = self._links[id(shard)]
        links.update()
        chain, cut = follow(links.successor, rows, self.n_step, committed)
        places = chain % shard.capacity
        reward, terminated, truncated = (shard.column(name)[places] for name in ("reward", "terminated", "truncated"))
        reward = reward.astype(self._discount.dtype, copy=False)
        total, discount, last = n_step(reward, terminated, truncated | cut, self.gamma)
        return first, total, discount, shard.gather(chain[last, np.arange(len(rows))])

    def _transitions(self, part: _Part, rows: Array) -> Transitions:
        first, reward, discount, last = part
        obs = first["obs"]
        state, next_state = (first["state"], last["next_state"]) if self._has_state else (obs[:, :0],) * 2
        mask, next_mask = (first["mask"], last["next_mask"]) if self._has_mask else (None, None)
        return Transitions(
            obs, first["action"], reward, discount, last["next_obs"], state, next_state, rows, mask, next_mask
        )
