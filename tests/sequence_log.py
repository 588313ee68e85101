"""Sequences drawn from counting environments, checked against their log; as a script, a process that writes the log."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from offbeat.memory import Memory
from offbeat.replay.sequences import SequenceReplay, carry_field
from offbeat.replay.settings import ReplaySettings, Sequences
from offbeat.replay.shard import Shard
from offbeat.replay.transitions import split_keys
from offbeat.types import Batches, Chunk, Schema
from rows import Counting
from specs import vector_spec

CARRY = 4
SPEC = vector_spec(observation=3, action=2, state=1)
SCHEMA = Schema.transitions(SPEC, (carry_field(CARRY),))
OBSERVATION = 3
PACKED = OBSERVATION + 1 + CARRY
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
    columns = {**chunk.columns, "carry": carry, "state": 3 * reward, "next_state": 3 * reward + 1}
    return Chunk(columns, sequence=chunk.sequence)


class Log:
    """All rows that a model has made, as arrays, and their places among the rows of their environment."""

    def __init__(self, model: Counting) -> None:
        names = ("env", "episode", "step", "reward", "terminated", "truncated")
        for name in names:
            setattr(self, name, np.array([getattr(row, name) for row in model.log]))
        self.obs = np.array([row.obs for row in model.log], np.float32)
        self.action = np.array([row.action for row in model.log], np.float32)
        self.place, self.by_env = np.zeros(len(model.log), np.int64), []
        for env in range(model.envs):
            mine = np.flatnonzero(self.env == env)
            self.place[mine] = np.arange(len(mine))
            self.by_env.append(mine)

    env: Any
    episode: Any
    step: Any
    reward: Any
    terminated: Any
    truncated: Any

    def later(self, rows: np.ndarray, count: int) -> np.ndarray:
        """The rows that many rows later in the same environment."""
        found = [self.by_env[self.env[row]][self.place[row] + count] for row in rows.ravel()]
        return np.array(found, np.int64).reshape(rows.shape)

    def returns(self, row: int, steps: int, gamma: float) -> tuple[float, float, int]:
        """Reward, discount and rows further on, by walking the log."""
        total, discount, mine = 0.0, 1.0, self.by_env[self.env[row]]
        for ahead in range(steps):
            at = mine[self.place[row] + ahead]
            total += discount * self.reward[at]
            discount *= gamma
            if self.terminated[at]:
                return total, 0.0, ahead
            following = mine[self.place[at] + 1] if self.place[at] + 1 < len(mine) else -1
            goes_on = following >= 0 and (self.episode[following], self.step[following]) == (
                self.episode[at],
                self.step[at] + 1,
            )
            if self.truncated[at] or not goes_on:
                break
        return total, discount, ahead


def check(batches: Batches, logs: list[Log], settings: ReplaySettings, walked: int = 20) -> np.ndarray:
    """Compares all sequences with the log, and n-step sums of `walked` rows. Returns the first learned rows (K, B)."""
    use, size, steps = settings.sequences or Sequences(1), settings.batch_size, settings.n_step
    count, columns = len(batches), batches.columns
    workers, learned = split_keys(batches.rows.reshape(count, use.length, size))
    assert (workers == workers[:, :1]).all()
    window = use.steps + steps - 1
    obs, next_obs = columns["obs"], columns["next_obs"]
    assert obs.shape == (count, use.steps, size, PACKED)
    assert next_obs.shape == (count, window, size, PACKED + OBSERVATION + (steps > 1))
    np.testing.assert_array_equal(obs, next_obs[:, : use.steps, :, :PACKED])
    for worker, log in enumerate(logs):
        k, b = np.nonzero(workers[:, 0] == worker)
        rows = np.stack([log.later(learned[k, 0, b], step) for step in range(-use.burn_in, use.length + steps - 1)])
        np.testing.assert_array_equal(rows[use.burn_in : use.steps], learned[k, :, b].T)  # consecutive, one environment
        _check_inputs(next_obs[k, :, b].swapaxes(0, 1), rows, log)
        mine = rows[use.burn_in : use.steps]
        per_row = {name: columns[name].reshape(count, use.length, size, -1)[k, :, b] for name in ("action", "state")}
        np.testing.assert_array_equal(per_row["action"].swapaxes(0, 1), log.action[mine])
        np.testing.assert_array_equal(per_row["state"].swapaxes(0, 1)[..., 0], np.float32(3 * log.reward[mine]))
        _check_returns(columns, (k, b), mine, log, settings, walked)
    return np.asarray(batches.rows.reshape(count, use.length, size)[:, 0])


def _check_inputs(packed: np.ndarray, rows: np.ndarray, log: Log) -> None:
    """packed: (W, n, ...). Observations, flags and states of whole sequences."""
    np.testing.assert_array_equal(packed[..., :OBSERVATION], log.obs[rows])
    broken = np.ones(rows.shape, bool)
    same = log.episode[rows[1:]] == log.episode[rows[:-1]]
    broken[1:] = ~(same & (log.step[rows[1:]] == log.step[rows[:-1]] + 1))
    np.testing.assert_array_equal(packed[..., OBSERVATION], broken)
    begins = log.step[rows] == 0
    carry = np.concatenate((np.where(begins, 0.5, 1.0)[..., None], log.obs[rows]), -1)
    np.testing.assert_array_equal(packed[..., OBSERVATION + 1 : PACKED], np.where(broken[..., None], carry, 0.0))


def _check_returns(columns: Any, where: Any, mine: np.ndarray, log: Log, settings: ReplaySettings, walked: int) -> None:
    use, size = settings.sequences or Sequences(1), settings.batch_size
    (k, b), packed = where, columns["next_obs"]
    chosen = np.random.default_rng(0).integers(0, [[len(k)], [use.length]], (2, walked)).T if len(k) else []
    for index, step in chosen:
        reward, discount, ahead = log.returns(mine[step, index], settings.n_step, settings.gamma)
        at = k[index], step * size + b[index]
        assert abs(columns["reward"][at] - reward) < 1e-5 * (1 + abs(reward))
        assert abs(columns["discount"][at] - discount) < 1e-6
        found = packed[k[index], use.burn_in + step, b[index]]
        last = log.by_env[log.env[mine[step, index]]][log.place[mine[step, index]] + ahead]
        expected = [*log.obs[last][:2], log.obs[last][2] + 1, *[ahead] * (settings.n_step > 1)]
        assert found[PACKED:].tolist() == expected
        assert columns["next_state"][at] == np.float32(3 * log.reward[last] + 1)


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
