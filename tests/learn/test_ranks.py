"""Several learner ranks: an update of two ranks with half the batch each is that of one with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_backends
import small_rollouts
from offbeat.errors import OffbeatError, UsageError
from offbeat.learn import torch_ranks
from offbeat.ranks import ALONE, Alone, Place, own_seed, part_of_batch, place
from offbeat.types import Array

SCRIPT = Path(__file__).parent.parent / "ranked_learners.py"


@pytest.fixture(scope="module")
def two_ranks() -> Any:
    """What two processes that are connected by gloo have found."""
    paths = os.pathsep.join([str(SCRIPT.parent), *sys.path])
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SCRIPT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["sac", "td3", "appo", "appo_rollout"])
def test_two_ranks_with_half_the_batch_equal_one_rank_with_the_whole_batch(two_ranks: Any, name: str) -> None:
    found = two_ranks[name]
    assert found["difference"] < 1e-9
    assert found["moved"] > 1e-3
    assert {"observations", "returns", "actor", "actor_optimiser", "critic_optimiser"} <= set(found["compared"])
    if name == "appo_rollout":
        assert 5 <= found["updates"] < 100  # target_kl ended turns, at the same update on both ranks
    else:
        assert found["updates"] == 100


def test_temperature_and_adaptive_rate_are_those_of_all_rows(two_ranks: Any) -> None:
    assert {"log_temperature", "temperature_optimiser"} <= set(two_ranks["sac"]["compared"])
    assert two_ranks["appo"]["rate_factor"] != 1.0  # the rate followed the divergence over both ranks


def test_comparison_by_hash_names_what_differs(two_ranks: Any) -> None:
    equal, differing = two_ranks["hashes"]
    assert equal == "equal"
    assert "after 7000 updates: critic of rank 1 differ" in differing


class Differing(Alone):
    """Two ranks, the other of which has another hash of everything. compared: how often hashes were gathered."""

    size, compared = 2, 0

    def gather(self, row: Array) -> Array:
        self.compared += len(row) > 1
        return np.stack([row, np.asarray(row) + (len(row) > 1)])

    def add_up(self, tensor: Any) -> None:
        tensor.mul_(2)


def test_hashes_are_compared_when_updates_from_replay_are_due_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "UPDATES_BETWEEN_COMPARISONS", 5)
    backend, ranks = small_backends.make("sac", small_backends.BOX), Differing()
    backend.join(ranks)
    small_backends.learn(backend, small_backends.batches(small_backends.BOX, 4))
    assert ranks.compared == 0
    with pytest.raises(OffbeatError, match="no longer have the same state after 6 updates"):
        small_backends.learn(backend, small_backends.batches(small_backends.BOX, 2), updates=4)


def test_hashes_are_compared_when_updates_from_rollouts_are_due_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ranks, "UPDATES_BETWEEN_COMPARISONS", 10)
    learner, ranks = small_rollouts.make("appo", minibatches=4, epochs=2), Differing()
    learner.backend.join(ranks)
    small_rollouts.turn(learner, small_rollouts.rollout(learner))
    assert ranks.compared == 0
    with pytest.raises(OffbeatError, match="no longer have the same state after 16 updates"):
        small_rollouts.turn(learner, small_rollouts.rollout(learner))


def test_data_of_any_length_is_gathered(two_ranks: Any) -> None:
    assert two_ranks["gathered"] == ["", "own"]


def test_a_rank_that_has_ended_is_reported_in_a_sentence(two_ranks: Any) -> None:
    assert two_ranks["lost"].startswith("RankFault: learner rank 0 lost the other ranks: one of them has ended")
    assert ".cc" not in two_ranks["lost"]


def test_place_is_read_from_the_variables_of_torchrun() -> None:
    variables = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert place(variables) == Place(5, 8, 1, 4)
    assert place({}) == Place() == place({"RANK": "0"})
    assert place({"RANK": "5", "WORLD_SIZE": "8"}) == Place(5, 8, 5, 8)
    assert place({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == Place(5, 8, 1, 8)
    with pytest.raises(UsageError, match="RANK=x: must be whole numbers, as torchrun sets them"):
        place({"RANK": "x", "WORLD_SIZE": "2"})
    for size in ("0", "5"):
        with pytest.raises(UsageError, match=f"RANK=5: must be less than WORLD_SIZE={size}"):
            place({"RANK": "5", "WORLD_SIZE": size})


def test_each_rank_has_a_seed_of_its_own_and_the_first_one_that_of_the_run() -> None:
    seeds = [own_seed(3, rank) for rank in range(4)] + [own_seed(3, rank, 100) for rank in range(4)]
    assert seeds[0] == 3
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    assert part_of_batch(256, 2) == 128
    with pytest.raises(UsageError, match=r"batch_size=255 cannot be divided among 2 learners equally; use .*=256"):
        part_of_batch(255, 2)


def test_alone_there_is_nothing_to_add_up() -> None:
    assert (ALONE.gather([1.0, 2.0]) == [[1.0, 2.0]]).all()
    assert ALONE.gather_bytes(b"x") == [b"x"]
