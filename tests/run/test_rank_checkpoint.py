"""One checkpoint of several ranks exists only when every part of it could be written; all ranks are told why not."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.errors import CheckpointError
from offbeat.ranks import RankFault
from offbeat.replay.shard import Shard
from offbeat.run.checkpoint import Checkpoints
from offbeat.run.rank_checkpoint import save_together
from offbeat.run.snapshot import Snapshot
from offbeat.types import Chunk, Field, Schema

SCHEMA = Schema(
    (
        Field("reward", (), "float32"),
        *(Field(name, (), "bool") for name in ("terminated", "truncated")),
        *(Field(name, (), "int32") for name in ("env", "episode", "step", "version")),
    )
)


class Meeting:
    """Where two ranks, threads of this process, give each other data. One that has left keeps nobody waiting."""

    def __init__(self) -> None:
        self.told: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self.left = False
        self.changed = threading.Condition()

    def leave(self) -> None:
        with self.changed:
            self.left = True
            self.changed.notify_all()


class Thread:
    """One of two ranks."""

    size = 2

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self._meeting, self._turn = rank, meeting, 0

    def gather_bytes(self, data: bytes) -> list[bytes]:
        told, self._turn = self._meeting.told[self._turn], self._turn + 1
        with self._meeting.changed:
            told[self.rank] = data
            self._meeting.changed.notify_all()
            self._meeting.changed.wait_for(lambda: len(told) == self.size or self._meeting.left)
        if len(told) < self.size:
            raise RankFault("the other rank has ended")
        return [told[rank] for rank in range(self.size)]


class Failing(Checkpoints):
    """Whose disk is full for one step of a save."""

    def append(self, *arguments: Any) -> Any:
        raise CheckpointError("the disk is full")

    def save(self, *arguments: Any) -> Any:
        raise CheckpointError("the disk is full")


def save(directory: Path, kinds: tuple[type[Checkpoints], type[Checkpoints]]) -> list[str]:
    """What each of two ranks says of saving a row: the checkpoint's name, or why there is none."""
    meeting = Meeting()

    def work(rank: int) -> str:
        shard = Shard(SCHEMA, 10)
        columns = {each.name: np.full(1, rank, each.dtype) for each in SCHEMA}
        shard.write(Chunk(columns))
        snapshot = Snapshot({"learner/x": np.zeros(1)}, {"steps": 1}, {})
        ranks: Any = Thread(rank, meeting)
        try:
            return save_together(ranks, kinds[rank](directory), snapshot, {"local": shard}, 2, None, seed=rank)
        except CheckpointError as error:
            return str(error)
        finally:
            meeting.leave()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(work, range(2)))


def test_both_ranks_are_told_the_name_of_a_whole_checkpoint(tmp_path: Path) -> None:
    assert save(tmp_path, (Checkpoints, Checkpoints)) == ["step-000000000002"] * 2
    rows = [chunk for _, chunks in Checkpoints(tmp_path).rows_of("latest") for chunk in chunks]
    assert sorted(float(chunk.columns["reward"][0]) for chunk in rows) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [((Checkpoints, Failing), "rank 1: the disk is full"), ((Failing, Checkpoints), "the disk is full")],
)
def test_a_part_that_cannot_be_written_leaves_no_checkpoint_and_all_ranks_say_why(
    kinds: Any, said: str, tmp_path: Path
) -> None:
    assert save(tmp_path, kinds) == [said] * 2
    assert Checkpoints(tmp_path).names() == []
