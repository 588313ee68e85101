"""From environment to sequences: all that a replay draws is what the environments' own logs have, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import soak
from collector_driver import NUM_ENVS, Driver, Kind, joined, logs, of_env
from collectors import publication
from counting import make
from offbeat.collect.factories import in_process, processes
from offbeat.envs import make_vector
from offbeat.replay.sequences import SequenceReplay, carry_field
from offbeat.replay.settings import ReplaySettings, Sequences
from offbeat.replay.transitions import WORKER_SHIFT
from offbeat.types import Array, Schema
from sequence_log import Log, check

CAPACITY = 600
DRAWN = soak.count(1_000_000)
"""Sequences by each collector; 10^6 with `make soak`."""
ONE_STEP = ReplaySettings(CAPACITY, batch_size=1_000, gamma=0.9, sequences=Sequences(7))
SETTINGS = [ONE_STEP, replace(ONE_STEP, n_step=3, sequences=Sequences(5, burn_in=2))]
BATCHES = 5
"""Drawn at once of each replay."""


@pytest.fixture(params=[0, 2], ids=["in process", "processes"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    """A collector whose policy's state counts the steps of an episode, and a replay of sequences."""
    schema = Schema.transitions(make_vector(make, 1).spec, (carry_field(1),))
    kind = Kind(processes if request.param else in_process, workers=request.param)
    driver = Driver(kind, make, tmp_path, experience=SequenceReplay(schema, SETTINGS[1]))
    yield driver
    driver.collector.close()


@pytest.mark.soak
def test_every_sampled_sequence_is_in_the_environments_logs(driver: Driver, tmp_path: Path) -> None:
    """Collectors go on writing while sequences are drawn, and overwrite the ring many times."""
    single, several = SequenceReplay(driver.experience.schema, ONE_STEP), driver.experience
    for shard in several.shards.values():
        single.attach(shard)
    rng, drawn, shards = np.random.default_rng(0), 0, several.shards.values()
    driver.collector.publish(publication(0))
    while any(shard.committed < shard.capacity for shard in shards):  # whichever worker is faster
        driver.run(driver.rows + 50)
    while drawn < DRAWN or any(shard.oldest <= 2 * shard.capacity for shard in shards):
        driver.collector.allow(driver.rows + CAPACITY)
        batches = [(each, replay.draw(rng, BATCHES)) for each, replay in zip(SETTINGS, (single, several), strict=True)]
        heads = _heads(several)
        driver.run(driver.rows + CAPACITY // 2)
        while any(len(log.env) < head for log, head in zip(_logs(driver), heads, strict=True)):
            driver.poll()
        found = _logs(driver)
        for settings, batch in batches:
            check(batch, found, settings)
            drawn += BATCHES * settings.batch_size
            worker, row = batch.rows >> WORKER_SHIFT, batch.rows & ((1 << WORKER_SHIFT) - 1)
            assert (row < np.array(heads)[worker]).all()
            assert len(np.unique(batch.rows)) > CAPACITY // 2
    driver.collector.close()
    _compare_with_logs(driver.columns(), tmp_path)


def _heads(replay: Any) -> list[int]:
    return [shard.committed for shard in replay.shards.values()]


def _logs(driver: Driver) -> list[Log]:
    """The rows of each worker that were polled, in the order in which they are in its shard."""
    workers = range(max(1, driver.kind.workers))
    return [Log(joined([chunk for chunk in driver.chunks if chunk.worker == worker])) for worker in workers]


def _compare_with_logs(rows: dict[str, Array], log_dir: Path) -> None:
    for env, log in enumerate(logs(log_dir)):
        mine = of_env(rows, env)
        count = len(mine["step"])
        assert count > CAPACITY // NUM_ENVS
        episode, step, _, reward, terminated, truncated = (np.array(each[:count]) for each in zip(*log, strict=True))
        np.testing.assert_array_equal(mine["obs"], np.stack([episode, step], 1))
        np.testing.assert_array_equal(mine["carry"][:, 0], step)
        np.testing.assert_array_equal(mine["reward"], reward.astype(np.float32))
        np.testing.assert_array_equal(mine["terminated"], terminated)
        np.testing.assert_array_equal(mine["truncated"], truncated)
