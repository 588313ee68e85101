"""Replay from which every transition is drawn equally often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.errors import OffbeatError, UsageError
from offbeat.memory import check_fits
from offbeat.references import check_call
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.stores import ShardPlan, Store
from offbeat.replay.transitions import TransitionReader
from offbeat.types import Array, Batches, Schema


class UniformReplay:
    """Draws over everything that the shards hold, each shard in proportion to its rows.

    carry: fields of a row that batches have besides, such as truncated. replacement: whether a row may be in a batch
    twice; in a replay with fewer rows than a batch it always may. reader: reads transitions by the keys of their rows,
    over all shards.
    """

    wants_td_errors = unfinished = False

    def __init__(
        self, schema: Schema, settings: ReplaySettings, carry: Sequence[str] = (), replacement: bool = True
    ) -> None:
        self.schema, self.settings, self._replacement = schema, settings, replacement
        check_fits(f"batch_size={settings.batch_size}", 2 * settings.batch_size * schema.row.itemsize)
        self.shards: dict[str, Shard] = {}
        self._own_positions = type(self).positions is not UniformReplay.positions
        if self._own_positions:
            check_call(type(self).__name__, self, UniformReplay, "positions")
        self.reader = TransitionReader(
            schema, n_step=settings.n_step, gamma=settings.gamma, dtype=settings.dtype, carry=carry
        )

    def __len__(self) -> int:
        return len(self.reader)

    def ready(self) -> bool:
        return len(self.reader) > 0

    def plan(self, worker: int, num_envs: int, total_envs: int) -> ShardPlan:
        """Capacity is shared out by environments."""
        return self.settings.plan(self.schema, worker, num_envs, total_envs)

    def attach(self, store: Store) -> None:
        assert isinstance(store, Shard)
        self.shards[str(store.worker)] = store
        self.reader.attach(store)

    def draw(self, rng: np.random.Generator, count: int) -> Batches:
        shape = count, self.settings.batch_size
        while True:
            held = self.reader.held()
            total = sum(max(0, committed - oldest) for oldest, committed in held)
            if total == 0:
                raise UsageError("replay is empty: collect or observe at least one transition before an update")
            chosen = self.positions(rng, shape, total)
            if self._own_positions:
                _check_positions(chosen, shape[0] * shape[1], total)
            keys = self.reader.keys(held, chosen)
            columns = self.reader.read(keys, held, shape)
            if columns is not None:
                return Batches(columns, keys.reshape(shape))

    def positions(self, rng: np.random.Generator, shape: tuple[int, int], total: int) -> Array:
        """Which rows to draw for K batches of B rows, shape (K, B): positions (K * B,) among the `total` that are held.

        Shard after shard, from the oldest row of each to the newest. A replay that prefers some rows can be a subclass
        that overrides this alone.
        """
        if self._replacement or total < shape[1]:
            # `rng.integers` takes longer to start than to draw a batch; 53 random bits are as even over any ring.
            return (rng.random(shape[0] * shape[1]) * total).astype(np.int64)
        return np.concatenate([rng.choice(total, shape[1], replace=False) for _ in range(shape[0])])

    def feedback(self, rows: Array, td_errors: Array) -> None:
        """Uniform replay does not use TD errors."""

    def arrays(self) -> dict[str, Array]:
        return {}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        pass


def _check_positions(positions: Any, count: int, total: int) -> None:
    """Raises OffbeatError for positions of a user's replay that name no row."""
    if not isinstance(positions, np.ndarray) or positions.shape != (count,):
        found = f"the shape {positions.shape}" if hasattr(positions, "shape") else f"a {type(positions).__name__}"
        raise OffbeatError(
            f"positions of your replay returned {found}; return an int64 array ({count},): one position for each row "
            "of the K batches"
        )
    if positions.dtype.kind != "i" or not (positions >= 0).all() or not (positions < total).all():
        raise OffbeatError(
            f"positions of your replay returned {positions.dtype} from {positions.min()} to {positions.max()}; return "
            f"whole numbers from 0 to {total - 1}, as int64"
        )
