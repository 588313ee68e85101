"""Runs of several learner ranks: they stay equal, survive the end of a rank, and resume with any number of ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offbeat.errors import RunInterrupted, UsageError
from offbeat.ranks import Alone
from offbeat.run import ranked
from offbeat.run.numbers import merged, merged_totals
from offbeat.settings import make_config

TESTS = Path(__file__).parent.parent


def ranked_runs(directory: Path, *part: str) -> Any:
    """What the processes of tests/ranked_runs.py have found, and what they wrote to standard error."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, TESTS / "ranked_runs.py", directory, *part]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, timeout=600)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ranked_runs(tmp_path_factory.mktemp("runs"))


def test_two_ranks_share_the_steps_and_make_every_update_together(runs: Any) -> None:
    first, second = runs["whole"]
    assert first["history"] == [76, 150, 160]  # only the first rank evaluates, by the steps of both
    assert (first["status"], second["status"], second["history"]) == ("finished", "finished", [])
    state = runs["whole state"]
    assert (state["step"], state["updates"], state["rows"], state["ranks"]) == (160, 30, 160, 2)
    assert state["episodes"] == 8  # of 20 steps, four on each rank


def test_a_killed_rank_ends_the_run_and_its_last_checkpoint_stays(runs: Any) -> None:
    survivor, exit_code = runs["killed"]
    assert exit_code == -signal.SIGKILL
    assert survivor["error"] == "RankFault"
    assert "resume the run from its last checkpoint with any number of learners" in survivor["said"]
    state = runs["killed state"]
    assert (state["folders"][-1], state["summary"]) == ("step-000000000100", "failed")
    assert "frame #" not in runs["stderr"]


def test_a_run_resumed_by_as_many_ranks_equals_an_uninterrupted_one(runs: Any) -> None:
    assert runs["killed again"][0]["differing"] == []
    assert runs["killed state"]["digest"] != runs["whole state"]["digest"]
    assert runs["killed again state"]["digest"] == runs["whole state"]["digest"]


@pytest.mark.parametrize(("name", "before", "ranks", "steps"), [("fewer", "whole", 1, 180), ("more", "fewer", 2, 200)])
def test_another_number_of_ranks_keeps_weights_optimisers_and_all_rows(
    runs: Any, name: str, before: str, ranks: int, steps: int
) -> None:
    assert all(each["status"] == "finished" for each in runs[name]), runs[name]
    assert runs[name][0]["differing"] == []
    state, earlier = runs[f"{name} state"], runs[f"{before} state"]
    assert (state["ranks"], state["step"], state["rows"]) == (ranks, steps, steps)
    assert state["updates"] == (steps - 40) // 4
    assert not Counter(earlier["rewards"]) - Counter(state["rewards"])


def test_a_batch_that_ranks_cannot_divide_is_refused_on_each(runs: Any) -> None:
    assert [each["error"] for each in runs["uneven"]] == ["UsageError"] * 2
    assert "use batch_size=16" in runs["uneven"][0]["said"]


@pytest.mark.slow
def test_all_ranks_stop_together_and_end_together(tmp_path: Path) -> None:
    runs = ranked_runs(tmp_path, "more")
    assert [each["status"] for each in runs["stopped"]] == ["stopped"] * 2  # rank 1 alone got the signal
    assert 100 < runs["stopped state"]["step"] < 160
    assert runs["stopped again state"]["digest"] == runs["whole state"]["digest"]
    first, second = runs["ppo"]  # a callback of the first rank ends the run
    assert (first["reason"], first["status"], second["status"]) == ("far enough", "finished", "finished")
    assert (runs["ppo state"]["step"], runs["ppo state"]["updates"]) == (384, 12)


def test_learners_from_python_say_how_to_start_them() -> None:
    config = make_config("sac", {"env": "Pendulum-v1", "learners": 2})
    with pytest.raises(UsageError, match=r"learners=2 needs 2 processes.*torchrun --nproc-per-node 2 your_script\.py"):
        ranked.join(config)


def test_jax_refuses_learners_and_names_devices() -> None:
    with pytest.raises(UsageError, match=r"learners=2 needs backend=torch: jax divides each batch.*use devices=2"):
        make_config("sac", {"env": "Pendulum-v1", "backend": "jax", "learners": 2})


def test_another_number_than_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    config = make_config("sac", {"env": "Pendulum-v1", "learners": 2})
    with pytest.raises(UsageError, match="learners=2, but torchrun started 4 processes"):
        ranked.join(config)
    with pytest.raises(UsageError, match="learners=2, but torchrun started 4 processes"):
        ranked.join(config, {"learners": 2})  # on resume
    jax = make_config("sac", {"env": "Pendulum-v1", "backend": "jax"})
    with pytest.raises(UsageError, match=r"learners=4 needs backend=torch.*devices=4"):
        ranked.join(jax)


def test_numbers_of_ranks_are_summed_or_averaged() -> None:
    own = {"replay": 10, "return_100": 1.0, "steps_per_second": 7.0, "critic_loss": 2.0, "length_100": None}
    other = {**own, "return_100": 3.0, "critic_loss": 4.0, "length_100": 5.0}
    whole = {"replay": 20, "return_100": 2.0, "steps_per_second": 7.0, "critic_loss": 3.0, "length_100": 5.0}
    assert merged([own, other]) == whole


class Closing(Alone):
    """Ranks that note that they were left."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_rank_that_fails_leaves_the_others_and_one_that_is_stopped_does_not() -> None:
    for error, left in ((OSError(), True), (RunInterrupted("stopped", None), False)):
        ranks = Closing()
        ranked._RANKS[:] = [ranks]
        with pytest.raises(type(error)), ranked.leaving_on_error(ranks):
            raise error
        assert (ranks.closed, ranks not in ranked._RANKS) == (left, left)
    ranked._RANKS.clear()


def test_variables_of_a_job_without_an_address_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"RANK=0 and WORLD_SIZE=2 say .* Start the processes with torchrun"):
        ranked.join(make_config("sac", {"env": "Pendulum-v1"}))


def test_the_summary_counts_what_every_rank_has_lost_and_restarted() -> None:
    own = {"env_steps": 9, "episodes": 1, "restarts": 0, "restarted_environments": 2, "train_return_100": None}
    own |= {"waits": {"learner": 1.0}, "lost": {"abandoned_chunks": 1}, "policy_lag": {"updates": 3}}
    other = {**own, "restarts": 2, "train_return_100": 5.0, "lost": {"abandoned_chunks": 2, "quarantined_rows": 4}}
    whole = {"env_steps": 9, "episodes": 2, "restarts": 2, "restarted_environments": 4, "train_return_100": 5.0}
    whole |= {"waits": {"learner": 2.0}, "lost": {"abandoned_chunks": 3, "quarantined_rows": 4}}
    assert merged_totals([own, other]) == {**whole, "policy_lag": {"updates": 3}}
