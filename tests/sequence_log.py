"""Sequences drawn from counting environments, checked against their log; as a script, a process that writes the log."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np

from offbeat.memory import Memory
from offbeat.replay.sequences import SequenceReplay, carry_field
from offbeat.replay.settings import ReplaySettings, Sequences
from offbeat.replay.shard import Shard
from offbeat.replay.transitions import split_keys
from offbeat.types import Array, Batches, Chunk, Schema
from rows import Counting, columns
from specs import vector_spec

CARRY = 4
SPEC = vector_spec(observation=3, action=2, state=1)
SCHEMA = Schema.transitions(SPEC, (carry_field(CARRY),))
PACKED = 3 + 1 + CARRY
SETTINGS = ReplaySettings(capacity=1_000, batch_size=16, gamma=0.9, sequences=Sequences(6, burn_in=2))


def over(*shards: Shard, settings: ReplaySettings = SETTINGS) -> SequenceReplay:
    replay = SequenceReplay(SCHEMA, settings)
    for worker, shard in enumerate(shards):
        shard.worker = worker
        replay.attach(shard)
    return replay


def filled(capacity: int, steps: int, envs: int = 1, seed: int = 0, **model: float) -> tuple[Shard, Counting]:
    made, shard = Counting(envs, seed, **model), Shard(SCHEMA, capacity)
    shard.write(with_carry(made.chunk(steps)))
    return shard, made


def with_carry(chunk: Chunk) -> Chunk:
    """The chunk with a privileged state, and with a recurrent state that names its row: (1, env, episode, step)."""
    obs = np.asarray(chunk.columns["obs"])
    carry = np.concatenate((np.ones((len(obs), 1)), obs), 1)
    carry[obs[:, 2] == 0, 0] = 0.5  # an episode begins
    reward = np.asarray(chunk.columns["reward"])[:, None]
    more = {"carry": carry, "state": 3 * reward, "next_state": 3 * reward + 1}
    return Chunk({**chunk.columns, **more}, sequence=chunk.sequence)


class Log:
    """All rows that were written to a shard, in their order: columns as of a chunk, row r first written as r-th."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self.columns = {name: np.asarray(column) for name, column in columns.items()}
        self.env, self.episode, self.step = (self.columns[name].astype(np.int64) for name in ("env", "episode", "step"))
        self._order = np.argsort(self.env, kind="stable")  # environment after environment
        self._rank = np.empty_like(self._order)
        self._rank[self._order] = np.arange(len(self._order))

    def later(self, rows: Array, count: int) -> Array:
        """The rows that many rows later in the same environment; -1 where there is none."""
        rank = self._rank[rows] + count
        found = self._order[np.clip(rank, 0, len(self._order) - 1)]
        there = (rank >= 0) & (rank < len(self._order)) & (self.env[found] == self.env[rows])
        return np.where(there, found, -1)

    def goes_on(self, rows: Array, following: Array) -> Array:
        """Whether the one row is the next step of the other's episode."""
        same = (self.episode[following] == self.episode[rows]) & (self.step[following] == self.step[rows] + 1)
        return np.asarray((following >= 0) & same)

    def returns(self, rows: Array, steps: int, gamma: float) -> tuple[Array, Array, Array]:
        """n-step sums of rewards, discounts, and the rows to bootstrap after, by walking the log."""
        total, discount, last = np.zeros(rows.shape), np.ones(rows.shape), rows
        going = np.ones(rows.shape, bool)
        for ahead in range(steps):
            at = self.later(rows, ahead)
            last = np.where(going, at, last)
            total += going * discount * self.columns["reward"][at]
            discount = np.where(going, gamma * discount * ~self.columns["terminated"][at], discount)
            ended = self.columns["terminated"][at] | self.columns["truncated"][at]
            going &= ~ended & self.goes_on(at, self.later(rows, ahead + 1))
        return total, discount, last


def log_of(model: Counting) -> Log:
    return Log(with_carry(Chunk(columns(model.log))).columns)


def check(batches: Batches, logs: Sequence[Log], settings: ReplaySettings) -> Array:
    """Compares all sequences with the log of each worker. Returns the keys of the first learned rows (K, B)."""
    use, size, steps = settings.sequences or Sequences(1), settings.batch_size, settings.n_step
    count = len(batches)
    workers, learned = split_keys(batches.rows.reshape(count, use.length, size))
    assert (workers == workers[:, :1]).all()
    found = {
        name: column.reshape(count, use.length, size, -1)
        for name, column in batches.columns.items()
        if name not in ("obs", "next_obs")
    }
    packed = batches.columns["next_obs"]
    assert packed.shape[:3] == (count, use.steps + steps - 1, size)
    obs = batches.columns["obs"]
    np.testing.assert_array_equal(obs, packed[:, : use.steps, :, : obs.shape[3]])
    for worker, log in enumerate(logs):
        k, b = np.nonzero(workers[:, 0] == worker)
        rows = np.stack([log.later(learned[k, 0, b], step) for step in range(-use.burn_in, use.length + steps - 1)])
        assert (rows >= 0).all()
        np.testing.assert_array_equal(rows[use.burn_in : use.steps], learned[k, :, b].T)  # consecutive, one environment
        _check_inputs(packed[k, :, b].swapaxes(0, 1), rows, log)
        mine = {name: column[k, :, b].swapaxes(0, 1) for name, column in found.items()}
        bootstrapped = packed[k, use.burn_in : use.steps, b].swapaxes(0, 1)[..., obs.shape[3] :]
        _check_learned(mine, bootstrapped, rows[use.burn_in : use.steps], log, settings)
    return np.asarray(batches.rows.reshape(count, use.length, size)[:, 0])


def _check_inputs(packed: Array, rows: Array, log: Log) -> None:
    """packed: (W, n, ...). Observations, flags and states of whole sequences."""
    obs, carry = (log.columns[name].astype(np.float32) for name in ("obs", "carry"))
    size = obs.shape[1]
    np.testing.assert_array_equal(packed[..., :size], obs[rows])
    broken = np.ones(rows.shape, bool)
    broken[1:] = ~log.goes_on(rows[:-1], rows[1:])
    np.testing.assert_array_equal(packed[..., size], broken)
    states = packed[..., size + 1 : size + 1 + carry.shape[1]]
    np.testing.assert_array_equal(states, np.where(broken[..., None], carry[rows], 0.0))


def _check_learned(
    found: Mapping[str, Array], bootstrapped: Array, rows: Array, log: Log, settings: ReplaySettings
) -> None:
    """found: columns (L, n, ...) of the learned rows (L, n). bootstrapped (L, n, O or O + 1), with n-step returns."""
    for name in ("action", "state"):
        if name in found:
            np.testing.assert_array_equal(found[name], log.columns[name][rows].astype(np.float32))
    reward, discount, last = log.returns(rows, settings.n_step, settings.gamma)
    np.testing.assert_allclose(found["reward"][..., 0], reward, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["discount"][..., 0], discount, rtol=1e-6)
    after = log.columns["next_obs"].astype(np.float32)
    np.testing.assert_array_equal(bootstrapped[..., : after.shape[1]], after[last])
    if settings.n_step > 1:
        np.testing.assert_array_equal(bootstrapped[..., -1], log.step[last] - log.step[rows])
    if "next_state" in found:
        np.testing.assert_array_equal(found["next_state"], log.columns["next_state"][last].astype(np.float32))


def lossy(envs: int, seed: int, steps: int) -> tuple[Counting, list[Chunk]]:
    """A model whose environments skip calls, and its rows in chunks of different lengths."""
    model = Counting(envs, seed, share=0.9, end=0.1)
    chunks, rng = [], np.random.default_rng(seed)
    while steps > 0:
        chunks.append(with_carry(model.chunk(min(steps, int(rng.integers(1, 40))))))
        steps -= len(chunks[-1].columns["obs"]) // envs or 1
    return model, chunks


def main() -> None:
    descriptor, nbytes, capacity, envs, seed, steps = map(int, sys.argv[1:])
    shard = Shard(SCHEMA, capacity, buffer=Memory(descriptor, nbytes).map())
    _, chunks = lossy(envs, seed, steps)
    for chunk in chunks:
        shard.write(chunk)


if __name__ == "__main__":
    main()
