"""Replay is divided among another number of ranks by whole episodes, and of too many rows the newest stay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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


def chunks(source: int, episodes: int, envs: int = ENVS, first: int = 0) -> list[Chunk]:
    """A chunk for each vector step of a source. The reward names the row: source, step and environment."""
    found = []
    for step in range(episodes * LENGTH):
        columns = {each.name: np.zeros(envs, each.dtype) for each in SCHEMA}
        columns["reward"][:] = 1_000 * source + envs * step + np.arange(envs)
        columns["env"][:] = first + np.arange(envs)
        columns["episode"][:], columns["step"][:] = divmod(step, LENGTH)
        found.append(Chunk(columns))
    return found


def divided(
    sources: int, episodes: int, ranks: int, capacity: int, envs: int = ENVS, numbered: str = "apart"
) -> list[dict[str, Any]]:
    """The rows that each rank gets, in their order.

    numbered: environments from 0 in each source, as those of ranks, or over all sources, as those of collectors.
    """
    found = []
    for rank in range(ranks):
        shard = Shard(SCHEMA, capacity)
        first = 0 if numbered == "apart" else envs
        rows = [
            (envs * LENGTH * episodes, iter(chunks(source, episodes, envs, first * source)))
            for source in range(sources)
        ]
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


@pytest.mark.parametrize("numbered", ["apart", "over all"])
@pytest.mark.parametrize(("sources", "envs"), [(1, 2), (1, 4), (2, 1), (4, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_episodes_that_environments_have_at_the_same_time_go_to_different_ranks(
    numbered: str, sources: int, envs: int, ranks: int
) -> None:
    """So that no rank begins without rows where it can be avoided: here no environment has ended an episode yet."""
    parts = divided(sources, 1, ranks, 100, envs, numbered)
    episodes = [len(rows["reward"]) // LENGTH for rows in parts]
    assert sum(episodes) == sources * envs
    assert max(episodes) - min(episodes) <= 1


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
