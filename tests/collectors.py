"""Collectors for tests: real ones, on environments that the tests can look into."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from offbeat.collect import CollectorContext
from offbeat.collect.shard_processes import ShardProcesses, ShardSlot
from offbeat.envs import make_vector
from offbeat.replay.queue import Rollout, RolloutQueue
from offbeat.replay.sequences import carry_field
from offbeat.replay.shard import Shard
from offbeat.replay.stores import QueuePlan, ShardPlan, Store, StorePlan
from offbeat.trace import NO_TRACE
from offbeat.types import Array, Batches, Chunk, EnvSpec, Field, RolloutBatch, Schema, Weights
from offbeat.weights.publication import Publication
from patience import SECONDS

SEED = 3
LOG_PROB = Field("log_prob", (), "float32")


class Acting:
    """A policy without real weights: actions are drawn, and `seen` holds what was loaded last.

    Its state counts the steps of the episode.
    """

    def __init__(self, size: int) -> None:
        self._size, self.seen = size, -1.0

    def load(self, weights: Weights) -> None:
        self.seen = float(weights["actor/0/weight"][0])

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 1), np.float32)

    def act(self, obs: Array, carry: Array, rng: Any, step: int = 0) -> tuple[Array, Array, dict[str, Array]]:
        action = rng.uniform(-1, 1, (len(obs), self._size)).astype(np.float32)
        return action, carry + 1, {"log_prob": np.full(len(obs), self.seen, np.float32), "carry": carry}


def publication(version: int) -> Publication:
    return Publication(version, {"actor/0/weight": np.full(1_000, version, np.float32)})


class StoredRows:
    """An experience that keeps shards, with the policy's state before each step, and learns nothing."""

    wants_td_errors = False

    def __init__(self, spec: EnvSpec, capacity: int) -> None:
        self.schema, self._capacity = Schema.transitions(spec, (carry_field(1),)), capacity
        self.shards: dict[str, Shard] = {}

    def __len__(self) -> int:
        return sum(shard.size for shard in self.shards.values())

    def plan(self, worker: int, num_envs: int, total_envs: int) -> StorePlan:
        return ShardPlan(self.schema, max(num_envs, self._capacity * num_envs // total_envs), worker)

    def attach(self, store: Store) -> None:
        assert isinstance(store, Shard)
        self.shards[str(store.worker)] = store

    def draw(self, rng: np.random.Generator, count: int) -> Batches:
        raise NotImplementedError

    def feedback(self, rows: Array, td_errors: Array) -> None:
        raise NotImplementedError

    def arrays(self) -> dict[str, Array]:
        return {}

    def restore(self, arrays: Any) -> None:
        pass


class TakenRollouts(StoredRows):
    """An experience of rollouts that takes each as soon as it can. rollouts: (rows, valid) of all that were taken."""

    def __init__(self, spec: EnvSpec, steps: int, slots: int = 1) -> None:
        self.schema = Schema.transitions(spec, (LOG_PROB, carry_field(1)))
        self._steps, self._slots = steps, slots
        self.shards, self.queues = {}, list[RolloutQueue]()
        self.rollouts: list[tuple[Array, Array]] = []

    def __len__(self) -> int:
        return len(self.rollouts)

    def plan(self, worker: int, num_envs: int, total_envs: int) -> StorePlan:
        return QueuePlan(self.schema, self._steps, num_envs, self._slots)

    def attach(self, store: Store) -> None:
        assert isinstance(store, RolloutQueue)
        self.queues.append(store)

    def wants(self) -> bool:
        return True

    def oldest(self) -> int:
        return 0

    def hold(self, rollouts: list[Rollout]) -> Chunk:
        rows = np.concatenate([rollout.rows for rollout in rollouts], axis=1)
        valid = np.concatenate([rollout.valid for rollout in rollouts], axis=1)
        self.rollouts.append((rows, valid))
        return RolloutBatch({name: rows[name] for name in self.schema.row.names or ()}, valid).chunk()


def make_context(
    env: Any,
    spec: EnvSpec,
    experience: Any,
    *,
    num_envs: int,
    contain: int = 4,
    env_kwargs: Any = None,
    **settings: Any,
) -> CollectorContext:
    """What a run would give to a collector."""

    def vector(first_env: int, count: int) -> Any:
        options = {"seed": SEED, "first_env": first_env, "max_faults": contain, "env_kwargs": env_kwargs or {}}
        return partial(make_vector, env, count, **options)

    def generator(worker: int, boot: int) -> dict[str, Any]:
        return dict(np.random.PCG64(np.random.SeedSequence([worker, boot])).state)

    rng = np.random.Generator(np.random.PCG64())
    rng.bit_generator.state = generator(0, 0)
    acting = partial(Acting, spec.action_size)
    return CollectorContext(num_envs, vector, lambda first, count: acting, experience, rng, generator, **settings)


def start(
    env: Any,
    spec: EnvSpec,
    *,
    collectors: int,
    num_envs: int,
    capacity: int,
    collect_ahead: int = 8,
    hang_seconds: float = 60.0,
    max_crashes: int = 5,
    contain: int = 4,
    note: Callable[[str], None] = lambda text: None,
    begin: bool = True,
    make: Callable[[CollectorContext], Any] = ShardProcesses,
    **env_kwargs: Any,
) -> tuple[ShardProcesses, list[ShardSlot]]:
    """Collectors that wait for their first permit, or with begin=False for their first weights."""
    context = make_context(
        env,
        spec,
        StoredRows(spec, capacity),
        num_envs=num_envs,
        contain=contain,
        env_kwargs=env_kwargs,
        collectors=collectors,
        collect_ahead=collect_ahead,
        hang_seconds=hang_seconds,
        max_crashes=max_crashes,
    )
    processes = make(context)
    processes.connect(note=note, trace=NO_TRACE, stop=lambda: False)
    if begin:
        processes.publish(publication(0))
    return processes, processes._slots


def collect(
    processes: ShardProcesses, rows: int, between: Callable[[], None] = lambda: None, seconds: float = 2 * SECONDS
) -> None:
    """Polls until there are so many rows and every permit is used."""
    until = time.monotonic() + seconds
    while processes.polled_rows < rows:
        processes.allow(rows - 1)
        processes.poll(0.05)
        between()
        assert time.monotonic() < until, f"only {processes.polled_rows} of {rows} rows in {seconds} s"


def collect_each(processes: ShardProcesses, slots: list[ShardSlot], rows: int, seconds: float = SECONDS) -> None:
    """Polls until every worker has made so many more rows."""
    until, wanted = time.monotonic() + seconds, [slot.store.committed + rows for slot in slots]
    while any(slot.store.committed < least for slot, least in zip(slots, wanted, strict=True)):
        processes.allow(10**9)
        processes.poll(0.01)
        assert time.monotonic() < until, "a collector does not collect"


def settle(processes: ShardProcesses, slots: list[ShardSlot], seconds: float = SECONDS) -> None:
    """Waits until every worker has made the steps that it was permitted, and polls them."""
    until = time.monotonic() + seconds
    while any(slot.control.stored_calls < slot.control.permit for slot in slots):
        processes.poll(0.05)
        assert time.monotonic() < until, "the collectors do not finish what they were permitted"
    processes.poll(0.0)


def columns(slot: ShardSlot) -> dict[str, Array]:
    """Everything in a slot's shard, in the order in which it was written."""
    return dict(slot.store.read(slot.store.oldest, slot.store.committed).columns)
