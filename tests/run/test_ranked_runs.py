"""Runs of several learner ranks: they stay equal, survive the end of a rank, and resume with any number of ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offbeat import flat
from offbeat.errors import RunInterrupted, UsageError
from offbeat.observe.console import Console
from offbeat.ranks import Alone
from offbeat.run import ranked
from offbeat.run.numbers import merged, merged_totals
from offbeat.run.rank_checkpoint import saved_seed
from offbeat.run.ranked_runner import FollowerDirectory, FollowerRecords
from offbeat.run.snapshot import Snapshot
from offbeat.run.training import Training
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
    assert len(set(state["rewards"])) > 150  # each rank has episodes and random actions of its own


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


def test_only_the_first_rank_writes_metrics_and_the_summary(runs: Any) -> None:
    state = runs["whole state"]
    assert state["logged"] == sorted(set(state["logged"]))
    assert state["evaluated"] == [76, 150, 160]
    assert state["evaluation"] == 160  # the other rank, which evaluates nothing, would have written none


def test_a_rank_that_is_not_the_first_writes_nothing_but_lines_of_the_log(tmp_path: Path) -> None:
    directory = FollowerDirectory(tmp_path, 1)
    directory.lock()
    directory.write_status("running", force=True)
    directory.write_summary({"status": "finished"})
    directory.write_recorded({}, {})
    directory.mark_failed()
    records = FollowerRecords(directory, Console(tmp_path, 1, quiet=True))
    records.log(None, {"episodes": 1}, {})  # type: ignore[arg-type]
    records.summary({"status": "finished"})
    assert records.sync() == {}
    records.note("a collector was lost")
    records.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]
    assert (tmp_path / "log.txt").read_text().endswith("rank 1: a collector was lost\n")


def test_a_batch_that_ranks_cannot_divide_is_refused_on_each(runs: Any) -> None:
    assert [each["error"] for each in runs["uneven"]] == ["UsageError"] * 2
    assert "use batch_size=16" in runs["uneven"][0]["said"]


def test_an_agent_saves_and_loads_what_all_ranks_have_observed_since_the_last_update(runs: Any) -> None:
    for found in runs["loop"]:
        assert (found["steps"], found["count"], found["mean"]) == (10, 10.0, [0.5] * 3), found


def test_an_agent_refuses_updates_that_ranks_cannot_make_together(runs: Any) -> None:
    for found in runs["loop"]:
        assert "count=1, but the replay of a rank does not hold enough yet" in found["empty"]
        assert "different numbers of updates, [1, 2]: every rank must call update equally often" in found["different"]
        assert found["steps later"] == 14  # what was observed before the refusal is not forgotten


def test_an_agent_updates_when_the_rollouts_of_all_ranks_are_complete(runs: Any) -> None:
    for found in runs["loop"]:
        assert found["updates of rollouts"] == [0, 0, 0, 1, 1, 1, 1, 2]


@pytest.mark.slow
def test_all_ranks_stop_together_and_end_together(tmp_path: Path) -> None:
    runs = ranked_runs(tmp_path, "more")
    assert [each["status"] for each in runs["stopped"]] == ["stopped"] * 2  # rank 1 alone got the signal
    assert 100 < runs["stopped state"]["step"] < 160
    assert runs["stopped again state"]["digest"] == runs["whole state"]["digest"]
    beside = runs["beside state"]  # rows that come with the state of a collector count, too
    assert beside["step"] == beside["rows"] >= 160
    first, second = runs["ppo"]  # a callback of the first rank asks for a checkpoint, and ends the run
    assert runs["ppo state"]["folders"] == ["step-000000000128", "step-000000000384"]
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


def test_each_rank_has_its_part_of_the_batch_and_a_seed_of_its_own() -> None:
    config = make_config("sac", {"env": "Pendulum-v1", "batch_size": 16, "seed": 3, "trace": True})
    first, second = Alone(), Alone()
    first.size, (second.rank, second.size) = 2, (1, 2)
    own = [ranked.own_config(config, ranks) for ranks in (first, second)]
    assert [flat.value(each.learner, "batch_size") for each in own] == [8, 8]
    assert own[0].run.start.seed == 3 != own[1].run.start.seed
    assert [each.run.output.quiet for each in own] == [False, True]
    assert (own[1].run.output.logger, own[1].run.output.trace) == ((), False)
    assert ranked.own_config(config, Alone()) == config
    snapshot = Snapshot({}, {"steps": 100, "seeds": [3, 4], "ranks": [{}]}, {})
    resumed = [saved_seed(snapshot, config, ranks) for ranks in (first, second, Alone())]
    assert resumed[:2] == [3, 4]
    assert resumed[2] not in (3, 4)  # another number of ranks: episodes are not those of before


def test_each_rank_may_make_an_equal_share_of_the_steps_that_are_left() -> None:
    training: Any = SimpleNamespace(agreement=object(), own_steps=30, steps=100, ranks=SimpleNamespace(size=2))
    assert [Training.own_share(training, steps) for steps in (110, 101, 100, 99)] == [35, 30, 30, 29]


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
