"""Replay is divided among another number of ranks by whole episodes, and of too many rows the newest stay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from offbeat.collect.ledger import ChunkLedger
from offbeat.collect.stepper import MAX_ENVIRONMENTS
from offbeat.replay.shard import Shard
from offbeat.run.redistribution import divide_replay
from offbeat.types import Chunk, Field, Schema

SCHEMA = Schema(
    (
        Field("reward", (), "float32"),
        *(Field(name, (), "bool") for name in ("terminated", "truncated")),
        *(Field(name, (), "int32") for name in ("env", "episode", "step", "version")),
    )
)
LENGTH, ENVS = 5, 2


def chunks(source: int, episodes: int) -> list[Chunk]:
    """A chunk for each vector step of two environments. The reward names the row: source, step and environment."""
    found = []
    for step in range(episodes * LENGTH):
        columns = {each.name: np.zeros(ENVS, each.dtype) for each in SCHEMA}
        columns["reward"][:] = 1_000 * source + ENVS * step + np.arange(ENVS)
        columns["env"][:] = np.arange(ENVS)
        columns["episode"][:], columns["step"][:] = divmod(step, LENGTH)
        found.append(Chunk(columns))
    return found


def divided(sources: int, episodes: int, ranks: int, capacity: int) -> list[dict[str, Any]]:
    """The rows that each rank gets, in their order."""
    found = []
    for rank in range(ranks):
        shard = Shard(SCHEMA, capacity)
        rows = [(ENVS * LENGTH * episodes, iter(chunks(source, episodes))) for source in range(sources)]
        checkpoints: Any = SimpleNamespace(rows_of=lambda which, rows=rows: rows, continue_from=lambda which: None)
        training: Any = SimpleNamespace(
            shards={"local": shard}, ranks=SimpleNamespace(rank=rank, size=ranks), ledger=ChunkLedger()
        )
        divide_replay(checkpoints, "latest", training)
        assert training.own_steps == shard.committed
        held = shard.read(shard.oldest, shard.committed).columns
        found.append({name: np.array(column) for name, column in held.items()})
    return found


def test_every_row_goes_to_one_rank_and_an_episode_stays_whole() -> None:
    first, second = divided(sources=2, episodes=4, ranks=2, capacity=1_000)
    rewards = np.concatenate((first["reward"], second["reward"]))
    assert sorted(rewards) == sorted(float(each) for source in (0, 1_000) for each in range(source, source + 40))
    for rows in (first, second):
        episodes = {(env, episode) for env, episode in zip(rows["env"], rows["episode"], strict=True)}
        assert len(rows["reward"]) == LENGTH * len(episodes)
        for env, episode in episodes:
            steps = rows["step"][(rows["env"] == env) & (rows["episode"] == episode)]
            assert steps.tolist() == list(range(LENGTH))


def test_episodes_that_environments_have_at_the_same_time_go_to_different_ranks() -> None:
    """So that no rank begins without rows, where no environment has ended an episode yet."""
    parts = divided(sources=1, episodes=1, ranks=2, capacity=100)
    assert [len(rows["reward"]) for rows in parts] == [LENGTH, LENGTH]


def test_rows_of_before_belong_to_no_environment_of_now() -> None:
    """Else a link would lead from an old episode to a new one of the same number."""
    [rows] = divided(sources=2, episodes=4, ranks=1, capacity=1_000)
    assert rows["env"].min() >= MAX_ENVIRONMENTS // 2
    source = rows["reward"] >= 1_000
    assert not set(rows["env"][source]) & set(rows["env"][~source])
    assert len(set(rows["env"])) == 2 * ENVS


def test_where_rows_do_not_fit_the_newest_of_each_shard_stay() -> None:
    [rows] = divided(sources=2, episodes=4, ranks=1, capacity=40)
    assert sorted(rows["reward"]) == [float(each) for source in (0, 1_000) for each in range(source + 20, source + 40)]
