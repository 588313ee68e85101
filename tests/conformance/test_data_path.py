"""From environment to batch: every transition that a replay draws is one that the environment's own log has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_in_process import Scripted, collector, counting_vector, poll

import soak
from counting import Counting
from drawing import Drawn
from offbeat.replay.shard import Shard
from offbeat.replay.uniform import UniformReplay
from offbeat.types import Schema
from own_parts.recent import Recent
from own_parts.replay import Prioritised
from specs import Transitions

SHARE = 1 if soak.FULL else 5
ROWS = {1: 15_000 // SHARE, 3: 30_000 // SHARE, 64: 60_000 // SHARE}
"""By the number of environments: more than 100,000 in each mode in full, a fifth by default."""
CAPACITY, GAMMA = 7_000 // SHARE, 0.9


def expected(log: list, position: int, steps: int) -> tuple[float, float, int]:
    """Reward, discount and number of steps, by walking the log."""
    total, discount = 0.0, 1.0
    for count, entry in enumerate(log[position : position + steps], start=1):
        total += discount * entry.reward
        discount *= GAMMA
        if entry.terminated:
            return total, 0.0, count
        if entry.truncated:
            return total, discount, count
    return total, discount, count


def check(batch: Transitions, shard: Shard, envs: list[Counting], steps: int, places: list[dict]) -> None:
    which = shard.column("env")[batch.rows % shard.capacity]
    for row, env in enumerate(which):
        episode, step = batch.obs[row].tolist()
        position = places[env][int(episode), int(step)]
        reward, discount, count = expected(envs[env].log, position, steps)
        assert batch.next_obs[row].tolist() == [episode, step + count]
        assert batch.reward[row] == pytest.approx(reward, rel=1e-6)
        assert batch.discount[row] == pytest.approx(discount, rel=1e-6)


CASES = [
    *((UniformReplay, kind, envs) for envs in ROWS for kind in ("inline", "next_step", "same_step", "disabled")),
    *((own, "same_step", 1) for own in (Recent, Prioritised)),
]


@pytest.mark.soak
@pytest.mark.parametrize(("make", "kind", "num_envs"), CASES)
def test_every_sampled_transition_is_in_the_environments_log(make: Any, kind: str, num_envs: int) -> None:
    rows = ROWS[num_envs]
    vector, envs = counting_vector(kind, num_envs)
    schema = Schema.transitions(vector.spec)
    shard, rng = Shard(schema, CAPACITY), np.random.default_rng(1)
    inline = collector(vector, Scripted(0), shard=shard)
    samplers = {steps: Drawn([shard], make, n_step=steps, gamma=GAMMA) for steps in (1, 3)}
    places: list[dict] = [{} for _ in envs]
    looks = iter(np.linspace(1, rows, 20).astype(int))
    look = next(looks)
    while shard.committed < rows:
        poll(inline)
        if shard.committed < look:
            continue
        look = next(looks, rows)
        for env, known in zip(envs, places, strict=True):
            for position in range(len(known), len(env.log)):
                known[env.log[position].episode, env.log[position].step] = position
        for steps, sampler in samplers.items():
            check(sampler.sample(rng, 300), shard, envs, steps, places)
    assert shard.committed == sum(len(env.log) for env in envs)
    assert shard.size == CAPACITY
