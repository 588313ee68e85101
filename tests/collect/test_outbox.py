"""What a worker without shared memory sends is what it would have written itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offbeat.collect.outbox import Parcel, RolloutOutbox, RowOutbox, deliver, open_outbox
from offbeat.replay.queue import RolloutQueue
from offbeat.replay.shard import Shard
from offbeat.replay.stores import QueuePlan, ShardPlan
from offbeat.types import Chunk, Field, Schema

ENVS = 3
FLAT = Schema(
    (
        Field("obs", (2,), "float32"),
        *(Field(name, (), "bool") for name in ("terminated", "truncated")),
        *(Field(name, (), "int32") for name in ("env", "episode", "step", "version")),
    )
)
WITH_IMAGES = Schema((*FLAT.fields, Field("obs/image", (2, 2), "uint8")))


def chunk(step: int, schema: Schema = FLAT, ended: bool = False) -> Chunk:
    """A step of every environment; environment 0 terminates in it if `ended`."""
    columns: dict[str, Any] = {each.name: np.zeros((ENVS, *each.shape), each.dtype) for each in schema}
    columns["obs"][:] = step
    columns["env"][:], columns["step"][:] = np.arange(ENVS), step
    columns["terminated"][0] = ended
    if "obs/image" in columns:
        columns["obs/image"][:] = step
    return Chunk(columns)


def held(shard: Shard) -> dict[str, Any]:
    return {name: np.array(column) for name, column in shard.read(shard.oldest, shard.committed).columns.items()}


@pytest.mark.parametrize("schema", [FLAT, WITH_IMAGES])
def test_rows_arrive_as_they_were_written_in_parcels_of_any_size(schema: Schema) -> None:
    direct, arrived = Shard(schema, 16), Shard(schema, 16)
    outbox = open_outbox(ShardPlan(schema, 16), 0)
    assert isinstance(outbox, RowOutbox)
    for step in range(8):  # more rows than the ring has
        direct.write(chunk(step, schema))
        outbox.write(chunk(step, schema))
        if step in (0, 3, 4, 7):
            deliver(outbox.parcel(), arrived)
    assert outbox.rows == arrived.committed == direct.committed == 8 * ENVS
    assert outbox.parcel() == Parcel(None)
    for name, column in held(direct).items():
        np.testing.assert_array_equal(held(arrived)[name], column)


@pytest.mark.parametrize("sent", [False, True])
def test_a_cut_reaches_the_last_row_of_its_environment_whether_it_was_sent_or_not(sent: bool) -> None:
    direct, arrived, outbox = Shard(FLAT, 100), Shard(FLAT, 100), RowOutbox(FLAT, 0)

    def both(step: int, *cuts: int, ended: bool = False) -> None:
        for env in cuts:
            direct.cut(env)
            outbox.cut(env)
        direct.write(chunk(step, ended=ended))
        outbox.write(chunk(step, ended=ended))
        if sent:
            deliver(outbox.parcel(), arrived)

    both(0)
    both(1, 1, ended=True)
    both(2, 0, 2)  # the last row of environment 0 is terminated, and is not truncated by the cut
    deliver(outbox.parcel(), arrived)
    assert held(direct)["truncated"].tolist() == [False, True, False, False, False, True, *[False] * 3]
    np.testing.assert_array_equal(held(arrived)["truncated"], held(direct)["truncated"])


def test_a_rollout_arrives_whole_and_one_that_does_not_is_counted() -> None:
    plan = QueuePlan(FLAT, 2, ENVS, 1)
    outbox, arrived = open_outbox(plan, 7), plan.open(bytearray(plan.nbytes))
    assert isinstance(outbox, RolloutOutbox)
    assert outbox.rows == 7
    for first in (0, 2):
        assert arrived.begin(version=5)
        assert outbox.parcel() == Parcel(None)
        for step in (first, first + 1):
            outbox.write(chunk(step), None, 5)
            assert outbox.whole is (step > first)
        deliver(outbox.parcel(), arrived)
        rollout = arrived.take()
        assert rollout is not None
        assert (rollout.version, rollout.valid.all()) == (5, True)
        assert rollout.columns["step"].tolist() == [[first] * ENVS, [first + 1] * ENVS]
    assert arrived.begin(version=6)
    arrived.abandon()
    assert arrived.counts().abandoned == 1
    with pytest.raises(RuntimeError, match="complete needs a rollout that was begun"):
        arrived.complete(np.zeros(3, np.uint8))
    assert isinstance(arrived, RolloutQueue)
