"""Collector processes for tests: real ones, on environments that the tests can look into."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from offbeat.collect.process import Job
from offbeat.collect.shards import ShardPlace, ShardProcesses, make_places
from offbeat.envs import make_vector
from offbeat.memory import Memory
from offbeat.types import Array, EnvSpec, Schema, Weights
from offbeat.weights.shared import Layout
from patience import SECONDS

SEED = 3


class Acting:
    """A policy without weights to speak of: actions are drawn, and `seen` holds what was loaded last."""

    def __init__(self, size: int) -> None:
        self._size, self.seen = size, -1.0

    def load(self, weights: Weights) -> None:
        self.seen = float(weights["actor/0/weight"][0])

    def initial_carry(self, num_envs: int) -> Array:
        return np.zeros((num_envs, 0), np.float32)

    def act(self, obs: Array, carry: Array, rng: Any, step: int = 0) -> tuple[Array, Array, dict[str, Array]]:
        return rng.uniform(-1, 1, (len(obs), self._size)).astype(np.float32), carry, {}


def weights(version: int) -> dict[str, Array]:
    return {"actor/0/weight": np.full(1_000, version, np.float32)}


def start(
    env: Any,
    spec: EnvSpec,
    *,
    collectors: int,
    num_envs: int,
    capacity: int,
    collect_ahead: int = 8,
    hang_seconds: float = 60.0,
    most_deaths: int = 5,
    contain: int = 4,
    note: Callable[[str], None] = lambda text: None,
    begin: bool = True,
    **env_kwargs: Any,
) -> tuple[ShardProcesses, list[ShardPlace]]:
    """Collectors that wait for their first permit, or with begin=False for their first weights."""
    schema = Schema.transitions(spec)
    places = make_places(schema, num_envs, collectors, capacity)

    def order(place: ShardPlace, memory: Memory, layout: Layout) -> Job:
        entropy = np.random.SeedSequence([place.worker, place.child.boots])
        generator = np.random.PCG64(entropy).state if place.state is None else place.state[1]["generator"]
        return Job(
            worker=place.worker,
            make_vector=partial(
                make_vector,
                env,
                place.num_envs,
                seed=SEED,
                first_env=place.first_env,
                contain=contain,
                env_kwargs=env_kwargs,
            ),
            make_policy=partial(Acting, spec.action_size),
            schema=schema,
            first_env=place.first_env,
            num_envs=place.num_envs,
            plan=place.plan,
            store=place.store,
            control=place.control_memory,
            weights=memory,
            layout=layout,
            generator=dict(generator),
            state=place.state,
            random_steps=0,
            reward_shaping=None,
            total_steps=0,
            trace=None,
        )

    processes = ShardProcesses(
        places, order, collect_ahead=collect_ahead, hang_seconds=hang_seconds, most_deaths=most_deaths
    )
    processes.note = note
    if begin:
        processes.load(weights(0), 0)
    return processes, places


def collect(
    processes: ShardProcesses, rows: int, between: Callable[[], None] = lambda: None, seconds: float = 2 * SECONDS
) -> None:
    """Takes rows in until there are so many and every permit is used."""
    until = time.monotonic() + seconds
    while processes.steps < rows:
        processes.allow(rows - 1)
        processes.take(0.05)
        between()
        assert time.monotonic() < until, f"only {processes.steps} of {rows} rows in {seconds} s"


def collect_each(processes: ShardProcesses, places: list[ShardPlace], rows: int, seconds: float = SECONDS) -> None:
    """Takes rows in until every collector has made so many more."""
    until, wanted = time.monotonic() + seconds, [place.shard.committed + rows for place in places]
    while any(place.shard.committed < least for place, least in zip(places, wanted, strict=True)):
        processes.allow(10**9)
        processes.take(0.01)
        assert time.monotonic() < until, "a collector does not collect"


def settle(processes: ShardProcesses, places: list[ShardPlace], seconds: float = SECONDS) -> None:
    """Waits until every collector has made what it was permitted to make, and takes it in."""
    until = time.monotonic() + seconds
    while any(place.control.calls < place.control.permit for place in places):
        processes.take(0.05)
        assert time.monotonic() < until, "the collectors do not finish what they were permitted"
    processes.take()


def columns(place: ShardPlace) -> dict[str, Array]:
    """Everything in a place's shard, in the order in which it was written."""
    return dict(place.shard.read(place.shard.oldest, place.shard.committed).columns)
