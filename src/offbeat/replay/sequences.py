"""Replay from which sequences of consecutive steps are drawn, for recurrent networks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from offbeat.errors import UsageError
from offbeat.memory import check_fits
from offbeat.replay.environment_rows import EnvironmentRows
from offbeat.replay.nstep import n_step
from offbeat.replay.settings import ReplaySettings
from offbeat.replay.shard import Shard
from offbeat.replay.stores import ShardPlan, Store
from offbeat.replay.transitions import WORKER_SHIFT, Held, TransitionReader, split_keys
from offbeat.types import Array, Batches, Field, Schema

_OF_SEQUENCES = ("obs", "next_obs", "carry")
"""Fields that a batch has in a form of its own."""


def carry_field(size: int) -> Field:
    """The field of a row for the recurrent state, C = size numbers, before its step."""
    return Field("carry", (size,), "float32")


class SequenceReplay:
    """Draws B sequences of S = burn_in + length consecutive rows of one environment, each as likely as any other.

    They may overlap, and may go on from one episode to the next. Where row t of a sequence does not continue the
    episode of row t - 1, it is `broken`, as the first row is: the network's state begins anew there.

    Columns of the batches: (K, L * B, ...) for the L = length learned steps, row t * B + b for step t of sequence b, as
    for single transitions. With the burn-in, obs (K, S, B, O + 1 + C): observation, broken flag, and where it is
    broken the state before the step, as the field `carry` (C,) holds it; C = 0 where rows have none. next_obs
    (K, W, B, O + 1 + C + O): the same, then the observation to bootstrap from. With n_step = n > 1, a last column says
    how many rows after its own the row is that this observation follows, and W = S + n - 1 with the n - 1 rows after
    the sequence; else W = S.
    """

    wants_td_errors = unfinished = False

    def __init__(self, schema: Schema, settings: ReplaySettings) -> None:
        if settings.sequences is None:
            raise ValueError("settings.sequences is None, which says how long sequences are; set it to Sequences(...)")
        self.schema, self.settings, self._use = schema, settings, settings.sequences
        self._observation = schema["obs"].size
        self._packed = self._observation + 1 + (schema["carry"].size if "carry" in schema.names else 0)
        rows, width = settings.batch_size * settings.run_length, 2 * self._packed + schema.row.itemsize // 4
        check_fits(f"batch_size={settings.batch_size} of {settings.run_length} steps each", 2 * rows * width * 4)
        self.shards: dict[str, Shard] = {}
        self.reader = TransitionReader(schema, gamma=settings.gamma, dtype=settings.dtype)
        self._order: dict[int, EnvironmentRows] = {}
        self._learned = [name for name in self.reader.first_names if name not in _OF_SEQUENCES]
        self._next = [name for name in self.reader.last_names if name not in _OF_SEQUENCES]

    def __len__(self) -> int:
        return len(self.reader)

    def ready(self) -> bool:
        """Whether some environment has enough rows for a sequence."""
        orders = self._order.values()
        return any(order.has_start() for order in orders) or any(
            order.update() and order.has_start() for order in orders
        )

    def plan(self, worker: int, num_envs: int, total_envs: int) -> ShardPlan:
        """Capacity is shared out by environments; each needs room and time for a sequence."""
        kept, needed = self.settings.capacity // total_envs, self.settings.run_length
        if kept < needed:
            raise UsageError(
                f"capacity={self.settings.capacity} keeps {kept} steps of each of {total_envs} environments, but "
                f"{_described(self.settings)} need {needed}: use a capacity of at least "
                f"{needed * total_envs}, or shorter sequences"
            )
        total = self.settings.total_steps
        if total is not None and total // total_envs < needed:
            raise UsageError(
                f"total_steps={total} makes {total // total_envs} steps in each of {total_envs} environments, but "
                f"{_described(self.settings)} need {needed}: use at least {needed * total_envs} steps, or shorter "
                "sequences"
            )
        return self.settings.plan(self.schema, worker, num_envs, total_envs)

    def attach(self, store: Store) -> None:
        assert isinstance(store, Shard)
        self.shards[str(store.worker)] = store
        self.reader.attach(store)
        self._order[store.worker] = EnvironmentRows(store, self.settings.run_length)

    def draw(self, rng: np.random.Generator, count: int) -> Batches:
        while True:
            held = self._possible()
            keys = self._choose(rng, count * self.settings.batch_size, held)
            runs = self._runs(keys)
            batches = self._batches(runs, count)
            # A run is torn only if its first row is: the others were written after it.
            if not self.reader.overtaken(keys, held):
                return batches

    def _possible(self) -> Held:
        """Of each shard, its oldest row and one past the newest that can begin a sequence."""
        while True:
            seen = [order.update() for order in self._order.values()]
            starts = [order.newest_start + 1 for order in self._order.values()]
            held = [(oldest, stop) for (oldest, _), stop in zip(self.reader.held(), starts, strict=True)]
            if any(stop > oldest for oldest, stop in held):
                return held
            if seen == [shard.committed for shard in self.reader.shards]:  # else a writer went round meanwhile
                raise UsageError(
                    f"replay holds no sequence yet: {_described(self.settings)} need {self.settings.run_length} "
                    "consecutive steps of one environment; collect or observe more before an update"
                )

    def _choose(self, rng: np.random.Generator, count: int, held: Held) -> Array:
        """Keys (count,) of first rows. Rows that cannot begin a sequence are drawn again, so all others stay equal."""
        total = sum(max(0, stop - oldest) for oldest, stop in held)
        keys = np.empty(count, np.int64)
        places = np.arange(count)
        while len(places):
            keys[places] = self.reader.keys(held, (rng.random(len(places)) * total).astype(np.int64))
            workers, rows = split_keys(keys[places])
            able = np.empty(len(places), bool)
            for worker, order in self._order.items():
                mine = workers == worker
                able[mine] = order.can_begin(rows[mine])
            places = places[~able]
        return keys

    def _runs(self, keys: Array) -> Array:
        """The keys (W, B) of all rows of the sequences that begin at these (B,)."""
        workers, rows = split_keys(keys)
        runs = np.empty((self.settings.run_length, len(keys)), np.int64)
        for worker, order in self._order.items():
            mine = np.flatnonzero(workers == worker)
            if len(mine):
                runs[:, mine] = order.runs(rows[mine]) + (worker << WORKER_SHIFT)
        return runs

    def _batches(self, runs: Array, count: int) -> Batches:
        """The batches of runs (W, K * B)."""
        size, use = self.settings.batch_size, self._use
        keys = np.ascontiguousarray(runs.reshape(-1, count, size).swapaxes(0, 1))  # (K, W, B)
        learned = slice(use.burn_in, use.steps)
        broken = self._broken(keys)
        reward, discount, ahead = self._returns(keys, broken)
        last = keys[:, learned]
        if self.settings.n_step > 1:
            step = np.arange(use.burn_in, use.steps)[:, None] + ahead
            last = np.take_along_axis(keys, step, 1)
        columns = {name: self._column(name, keys[:, learned]) for name in self._learned}
        columns |= {name: self._column(name, last) for name in self._next}
        columns |= {"reward": reward, "discount": discount}
        flat = {name: array.reshape(count, -1, *array.shape[3:]) for name, array in columns.items()}
        return Batches(flat | self._inputs(keys, broken, last, ahead), keys[:, learned].reshape(count, -1))

    def _broken(self, keys: Array) -> Array:
        """(K, W, B) bool: which rows do not continue the episode of the row before."""
        episode, step = self._column("episode", keys), self._column("step", keys)
        broken = np.ones(keys.shape, bool)
        np.not_equal(episode[:, 1:], episode[:, :-1], out=broken[:, 1:])
        broken[:, 1:] |= step[:, 1:] != step[:, :-1] + 1
        return broken

    def _returns(self, keys: Array, broken: Array) -> tuple[Array, Array, Array]:
        """Rewards and discounts (K, L, B) of the learned rows; and how many rows later the bootstrapped one is."""
        first, length, steps = self._use.burn_in, self._use.length, self.settings.n_step
        dtype = self.settings.dtype
        reward, terminated = (self._column(name, keys[:, first:]) for name in ("reward", "terminated"))
        if steps == 1:
            return reward, dtype(self.settings.gamma) * ~terminated, np.zeros(reward.shape, np.int64)
        ended = self._column("truncated", keys[:, first:])
        ended[:, :-1] |= broken[:, first + 1 :]  # a gap ends the sum as a truncation does
        windows = [slice(start, start + length) for start in range(steps)]
        reward, terminated, ended = (
            np.stack([part[:, window].ravel() for window in windows]) for part in (reward, terminated, ended)
        )
        shape = len(keys), length, keys.shape[2]
        total, discount, last = n_step(reward.astype(dtype), terminated, ended, self.settings.gamma)
        return total.reshape(shape), discount.reshape(shape), last.reshape(shape)

    def _inputs(self, keys: Array, broken: Array, last: Array, ahead: Array) -> dict[str, Array]:
        """obs and next_obs of the batches."""
        (count, rows, size), observation, packed = keys.shape, self._observation, self._packed
        several = self.settings.n_step > 1
        following = np.zeros((count, rows, size, packed + observation + several), np.float32)
        following[..., :observation] = self._column("obs", keys)
        following[..., observation] = broken
        if packed > observation + 1:
            following[broken, observation + 1 : packed] = self._column("carry", keys[broken])
        learned = slice(self._use.burn_in, self._use.steps)
        following[:, learned, :, packed : packed + observation] = self._column("next_obs", last)
        if several:
            following[:, learned, :, -1] = ahead
        return {"obs": following[:, : self._use.steps, :, :packed], "next_obs": following}

    def _column(self, name: str, keys: Array) -> Array:
        """A field of the rows with these keys, of any shape."""
        shards = self.reader.shards
        if len(shards) == 1:
            rows = keys - (shards[0].worker << WORKER_SHIFT)
            return np.asarray(shards[0].column(name)[rows % shards[0].capacity])
        workers, rows = split_keys(keys)
        field = self.schema[name]
        found = np.empty((*keys.shape, *field.shape), field.dtype)
        for shard in shards:
            mine = workers == shard.worker
            found[mine] = shard.column(name)[rows[mine] % shard.capacity]
        return found

    def feedback(self, rows: Array, td_errors: Array) -> None:
        """Every sequence is as likely as any other, whatever its TD errors."""

    def arrays(self) -> dict[str, Array]:
        return {}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        pass


def _described(settings: ReplaySettings) -> str:
    """The settings that say how many rows a sequence needs."""
    assert settings.sequences is not None
    numbers = {"sequence_length": settings.sequences.length, "burn_in": settings.sequences.burn_in}
    named = [f"{name}={number}" for name, number in numbers.items() if number]
    return " and ".join([*named, *[f"n_step={settings.n_step}"] * (settings.n_step > 1)])
