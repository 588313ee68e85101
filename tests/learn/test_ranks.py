"""Several learner ranks: an update of two ranks with half the batch each is that of one with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offbeat.errors import UsageError
from offbeat.ranks import ALONE, Place, own_seed, part_of_batch, place

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


def test_data_of_any_length_is_gathered(two_ranks: Any) -> None:
    assert two_ranks["gathered"] == ["", "own"]


def test_a_rank_that_has_ended_is_reported_in_a_sentence(two_ranks: Any) -> None:
    assert two_ranks["lost"].startswith("RankFault: learner rank 0 lost the other ranks: one of them has ended")
    assert ".cc" not in two_ranks["lost"]


def test_place_is_read_from_the_variables_of_torchrun() -> None:
    variables = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert place(variables) == Place(5, 8, 1, 4)
    assert place({}) == Place() == place({"RANK": "0"})


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
