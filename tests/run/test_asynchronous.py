"""Runs with collector processes: the same numbers as one process where they are synchronous, a held ratio where not."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offbeat
import soak
from offbeat import threads
from offbeat.collect.shard_processes import ShardProcesses
from offbeat.errors import UsageError
from offbeat.observe.jsonl import read
from offbeat.observe.trace_summary import summarise
from offbeat.replay.segments import read_rows
from offbeat.run.checkpoint import Checkpoints
from pacing import Gated, Holding
from trace_format import validate

SMALL: dict[str, Any] = {
    "hidden": (8,),
    "batch_size": 8,
    "random_steps": 50,
    "warmup_steps": 50,
    "eval_episodes": 2,
    "eval_every": 0,
    "checkpoint_every": 0,
    "max_episode_steps": 30,
    "threads": 1,
    "logger": (),
    "quiet": True,
    "preset": None,
}


def train(out: Path, name: str, algorithm: str = "sac", env: Any = "Pendulum-v1", **settings: Any) -> offbeat.RunResult:
    return offbeat.train(algorithm, env, out=str(out), name=name, **{**SMALL, **settings})


def stored(path: Path) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """The learner's arrays and every shard's rows in the newest checkpoint."""
    checkpoints = Checkpoints(path)
    arrays = checkpoints.load("latest").arrays
    replay = checkpoints._manifest(checkpoints._resolve("latest")).replay
    assert replay is not None
    shards = []
    for _, listing in sorted(replay.items()):
        chunks = [chunk.columns for chunk in read_rows(path / "replay", listing)]
        shards.append({name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]})
    return {name: array for name, array in arrays.items() if name.startswith("learner/")}, shards


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


class Counts:
    """Steps and updates at every event."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def on_chunk(self, event: Any) -> None:
        self.seen.append((event.step, event.updates))

    def on_update(self, event: Any) -> None:
        self.seen.append((event.step, event.updates))


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("sac", "Pendulum-v1", {"num_envs": 3, "normalise_observations": True}),
        ("td3", "Pendulum-v1", {"updates_per_step": 0.3, "exploration": "ornstein_uhlenbeck"}),
        ("dqn", "CartPole-v1", {"num_envs": 2, "updates_per_step": 2, "n_step": 3}),
    ],
)
def test_with_slack_0_one_collector_gives_the_numbers_of_one_process(
    algorithm: str, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    alone = train(tmp_path, "alone", algorithm, env, total_steps=400, **settings)
    beside = train(tmp_path, "beside", algorithm, env, total_steps=400, collectors=1, slack=0, **settings)
    (learned, [mine]), (learned_beside, [theirs]) = stored(alone.path), stored(beside.path)
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    for name in learned:
        np.testing.assert_array_equal(learned[name], learned_beside[name], err_msg=name)
    assert alone.evaluation == beside.evaluation
    assert alone.status == beside.status == "finished"


def test_with_slack_rows_come_from_older_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    for slack in (1, 100):
        settings = {"total_steps": 300, "collectors": 1, "slack": slack, "collect_ahead": 50, "updates_per_step": 0.5}
        result = train(tmp_path, f"slack {slack}", callbacks=[Holding(monkeypatch)], **settings)
        most.append(summary(result.path)["policy_lag"]["most_updates"])
    assert most[0] <= 2
    assert most[1] > 10


@pytest.mark.parametrize(
    ("ratio", "settings"),
    [
        (0.5, {"collectors": 2, "num_envs": 4}),
        (3.0, {"collectors": 2, "num_envs": 2}),
        pytest.param(1.0, {"collectors": 1, "num_envs": 1, "slack": 8}, marks=pytest.mark.slow),
    ],
)
def test_the_ratio_is_held_within_a_percent(ratio: float, settings: dict[str, Any], tmp_path: Path) -> None:
    """Over any window: deviations from the line must not span more than a percent of 10,000 steps."""
    counts = Counts()
    total = 2_000 if ratio <= 1 else 700
    result = train(tmp_path, "run", total_steps=total, updates_per_step=ratio, callbacks=[counts], **settings)
    steps, updates = np.array([each for each in counts.seen if each[0] > 50]).T
    ahead = (steps - 50) - updates / ratio  # steps whose updates are not made yet
    assert ahead.min() > -1 - 1 / ratio, "the learner ran ahead"
    assert ahead.max() - ahead.min() <= 100
    assert result.status == "finished"
    found = summary(result.path)
    assert found["updates"] == int((found["env_steps"] - 50) * ratio)
    assert abs(found["updates_per_step"] / ratio - 1) < 0.01
    assert found["env_steps"] < total + settings["num_envs"]


def test_max_policy_lag_bounds_how_old_acting_weights_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"total_steps": 100, "updates_per_step": 10, "collectors": 1, "collect_ahead": 8}
    free = train(tmp_path, "free", callbacks=[Holding(monkeypatch)], **settings)
    bounded = train(tmp_path, "bounded", callbacks=[Holding(monkeypatch)], max_policy_lag=3, **settings)
    assert summary(free.path)["policy_lag"]["most_updates"] > 3
    assert summary(bounded.path)["policy_lag"]["most_updates"] <= 3
    assert summary(bounded.path)["policy_lag"]["seconds_p50"] > 0


def test_rows_that_wait_to_be_taken_in_count_for_the_bound_as_well(tmp_path: Path) -> None:
    settings = {"total_steps": 300, "updates_per_step": 8, "collectors": 1, "max_policy_lag": 4}
    result = train(tmp_path, "run", **settings)
    assert summary(result.path)["policy_lag"]["most_updates"] <= 4


@pytest.mark.parametrize("settings", [{"slack": 0}, {"updates_per_step": 5, "total_steps": 200}])
def test_every_collector_gets_its_share(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"total_steps": 400, "collectors": 4, "num_envs": 4, "callbacks": [Holding(monkeypatch)], **settings}
    result = train(tmp_path, "run", **settings)
    shares = [len(rows["env"]) for rows in stored(result.path)[1]]
    assert min(shares) > sum(shares) / 8, shares


def test_collect_ahead_reaches_who_permits_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does there is a test of its own, of collectors without a run."""
    given = []

    class Noting(ShardProcesses):
        def __init__(self, context: Any, host: Any) -> None:
            given.append(context.collect_ahead)
            super().__init__(context, host)

    monkeypatch.setattr("offbeat.collect.factories.ShardProcesses", Noting)
    train(tmp_path, "run", total_steps=60, collectors=1, collect_ahead=3)
    assert given == [3]


def test_counters_of_a_checkpoint_are_of_its_cut(tmp_path: Path) -> None:
    """Every step ends an episode, so that there are as many episodes as steps."""
    result = train(
        tmp_path, "run", total_steps=600, collectors=2, num_envs=2, checkpoint_every=100, max_episode_steps=1
    )
    for name in Checkpoints(result.path).names():
        counters = Checkpoints(result.path).load(name).values["progress"]
        if name.startswith("step-"):
            assert counters["episodes"] == counters["step"] == counters["calls"], name


def test_chunks_cannot_be_written_to(tmp_path: Path) -> None:
    class Meddle:
        def on_chunk(self, event: Any) -> None:
            with pytest.raises(ValueError, match="read-only"):
                event.chunk.columns["reward"][...] = 123

    assert train(tmp_path, "run", total_steps=100, collectors=1, callbacks=[Meddle()]).status == "finished"


def test_a_factory_of_vector_environments_serves_every_collector(tmp_path: Path) -> None:
    def make() -> Any:
        return gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync")

    settings = {"env": make, "collectors": 2, "total_steps": 200, "max_episode_steps": None, "eval_env": "Pendulum-v1"}
    result = train(tmp_path, "run", num_envs=4, **settings)
    assert [len(set(rows["env"])) for rows in stored(result.path)[1]] == [2, 2]
    with pytest.raises(UsageError, match="num_envs=4"):
        train(tmp_path, "wrong", num_envs=2, **settings)


def test_what_cannot_be_sent_to_a_collector_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to a collector"):
        train(tmp_path, "run", env=lambda: (lock, Gated())[1], total_steps=100, collectors=1)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="capacity"):
        train(tmp_path, "run", total_steps=100, collectors=1, capacity=10**15)


def test_a_run_resumes_with_the_collectors_that_it_had(tmp_path: Path) -> None:
    alone = train(tmp_path, "alone", total_steps=100)
    beside = train(tmp_path, "beside", total_steps=100, collectors=1)
    for path, collectors in ((alone.path, 1), (beside.path, 0)):
        with pytest.raises(UsageError, match=f"collectors={collectors} cannot change"):
            offbeat.resume(path, total_steps=200, collectors=collectors)


def test_nothing_is_left_open_by_runs_that_end_or_are_refused(tmp_path: Path) -> None:
    def opened() -> int:
        gc.collect()  # a mapping keeps a descriptor of its own as long as it lives
        return len(os.listdir("/proc/self/fd"))

    train(tmp_path, "first", total_steps=100, collectors=2, num_envs=2)
    before = opened()
    train(tmp_path, "second", total_steps=100, collectors=2, num_envs=2)
    for _ in range(3):
        with pytest.raises(UsageError):
            train(tmp_path, "second", total_steps=100, collectors=2, num_envs=2)
        with pytest.raises(UsageError, match="no update"):
            train(tmp_path, "third", total_steps=40, collectors=2, num_envs=2)
    assert opened() <= before


def test_the_last_step_is_evaluated_once_after_its_updates(tmp_path: Path) -> None:
    settings = {"total_steps": 100, "eval_every": 100, "updates_per_step": 8, "collectors": 1, "slack": 100}
    result = train(tmp_path, "run", **settings)
    (only,) = result.history
    assert only.version == 8 * (only.step - SMALL["warmup_steps"])  # every update that belongs to the steps was made


def test_evaluation_does_not_stop_training_and_names_the_weights_that_it_was_of(tmp_path: Path) -> None:
    moments: list[tuple[int, int]] = []
    gate = tmp_path / "gate"

    class Watch:
        def on_evaluation(self, event: Any) -> None:
            moments.append((event.evaluation.step, event.step))

        def on_chunk(self, event: Any) -> None:
            if event.step > 150:
                gate.write_bytes(b"." * 1_000)

    result = offbeat.train(
        "sac",
        Gated,
        eval_env=lambda: Gated(gate),  # does not end its first episode before training has gone on
        callbacks=[Watch()],
        out=str(tmp_path),
        name="run",
        **{**SMALL, "eval_every": 100, "eval_episodes": 1, "collectors": 1, "total_steps": 1_000},
    )
    assert [step for step, _ in moments] == sorted({step for step, _ in moments})
    assert len(moments) == 10
    assert moments[0][1] > 150, "training waited for the evaluation"
    for evaluation in result.history:
        assert 0 <= evaluation.version <= max(0, evaluation.step - 50)
    assert result.evaluation is not None
    assert result.evaluation.step >= 1_000


def test_the_best_checkpoint_holds_the_weights_that_were_evaluated(tmp_path: Path) -> None:
    result = train(tmp_path, "run", total_steps=800, collectors=1, eval_every=200)
    best = max(result.history, key=lambda each: each.mean_return)
    snapshot = Checkpoints(result.path).load("best")
    assert int(snapshot.arrays["learner/updates"]) == best.version
    again = offbeat.evaluate(result.path, checkpoint="best", episodes=2)
    assert again.returns == pytest.approx(best.returns)


def test_a_run_goes_on_from_its_checkpoint_with_every_row_and_the_ratio(tmp_path: Path) -> None:
    first = train(
        tmp_path, "run", total_steps=700, collectors=2, num_envs=4, updates_per_step=0.5, checkpoint_every=300
    )
    _, before = stored(first.path)
    second = offbeat.resume(first.path, total_steps=1_400)
    _, after = stored(second.path)
    for old, new in zip(before, after, strict=True):
        for name in old:
            np.testing.assert_array_equal(old[name], new[name][: len(old[name])], err_msg=name)
        follows = [
            set(zip(each["env"].tolist(), each["episode"].tolist(), each["step"].tolist(), strict=True))
            for each in (old, new)
        ]
        assert len(follows[1]) == len(new["env"]), "a step is there twice after the resume"
        cut = len(old["env"])
        for env in np.unique(new["env"]):
            mine = new["env"] == env
            last, first_new = np.flatnonzero(mine[:cut])[-1], cut + np.flatnonzero(mine[cut:])[0]
            if not (new["terminated"][last] or new["truncated"][last]):
                assert new["episode"][first_new] == new["episode"][last], "an episode was not gone on with"
                np.testing.assert_array_equal(new["obs"][first_new], new["next_obs"][last])
    found = summary(second.path)
    assert found["updates"] == int((found["env_steps"] - 50) * 0.5)


def traced(tmp_path: Path, steps: int) -> Path:
    settings: dict[str, Any] = {"collectors": 2, "num_envs": 4, "trace": True, "hidden": (64, 64), "batch_size": 64}
    every = {"eval_every": steps // 3, "checkpoint_every": steps // 3}
    return train(tmp_path, "run", total_steps=steps, **settings, **every).path / "trace.json"


def test_the_trace_shows_what_every_process_does(tmp_path: Path) -> None:
    assert not (train(tmp_path, "untraced", total_steps=60).path / "trace.json").exists()
    trace = traced(tmp_path, 300)
    assert validate(trace) == []
    assert isinstance(json.loads(trace.read_text()), list)
    tracks = {track.process: track for track in summarise(trace)}
    assert {"learner", "collector 0", "collector 1", "evaluation"} <= tracks.keys()
    spans = {span.name for track in tracks.values() for span in track.spans}
    assert {"env step", "act", "write", "wait", "sample", "critic", "actor", "publish", "evaluate"} <= spans


@pytest.mark.skipif(not soak.FULL, reason="shares of time depend on how slow and busy the machine is (make soak)")
@pytest.mark.soak
def test_the_trace_accounts_for_the_time_of_every_process(tmp_path: Path) -> None:
    for track in summarise(traced(tmp_path, 3_000)):
        assert track.unattributed <= 0.2 * track.wall, track


@pytest.mark.skipif(not soak.FULL, reason="who waits for whom depends on how slow and busy the machine is (make soak)")
@pytest.mark.soak
def test_a_slow_learner_makes_collectors_wait_and_slow_environments_the_learner(tmp_path: Path) -> None:
    slow_learner = train(tmp_path, "learner", total_steps=300, collectors=1, hidden=(256, 256), batch_size=256)
    settings: dict[str, Any] = {"total_steps": 150, "max_episode_steps": 20, "eval_episodes": 1}
    slow_envs = train(tmp_path, "envs", env=lambda: Gated(seconds=0.01), collectors=1, **settings)
    waits = summary(slow_learner.path)["waits"]
    assert waits["collectors"] > waits["learner"]
    waits = summary(slow_envs.path)["waits"]
    assert waits["learner"] > 0.5
    assert waits["learner"] > waits["collectors"]


def test_trace_cpu_adds_processor_time(tmp_path: Path) -> None:
    plain, with_cpu = (
        train(tmp_path, name, total_steps=100, collectors=1, trace=True, trace_cpu=name == "cpu")
        for name in ("plain", "cpu")
    )
    assert "tdur" not in (plain.path / "trace.json").read_text()
    events = json.loads((with_cpu.path / "trace.json").read_text())
    assert {event["pid"] for event in events if "tdur" in event} >= {
        event["pid"] for event in events if event["ph"] == "X"
    }


def test_settings_of_collectors_are_refused_without_any() -> None:
    for key, value in {
        "slack": 5,
        "collect_ahead": 2,
        "max_policy_lag": 3,
        "hang_seconds": 1,
        "max_crashes": 2,
    }.items():
        with pytest.raises(UsageError, match=f"{key}.*collectors"):
            offbeat.train("sac", "Pendulum-v1", **{key: value})
    with pytest.raises(UsageError, match="num_envs >= 3"):
        offbeat.train("sac", "Pendulum-v1", collectors=3)
    with pytest.raises(UsageError, match="vector environment"):
        offbeat.train(
            "sac", gymnasium.make_vec("Pendulum-v1", 2), eval_env="Pendulum-v1", collectors=2, num_envs=2, quiet=True
        )


def test_the_first_lines_say_how_the_machine_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    seen = []

    class Look:
        def on_update(self, event: Any) -> None:
            seen.append(torch.get_num_threads())

    train(tmp_path, "run", total_steps=120, collectors=1, threads=3, quiet=False, callbacks=[Look()])
    assert set(seen) == {3}
    words = capsys.readouterr().out
    assert f"learner 3 of {threads.cores()} threads; acting in numpy; 1 collector; slack 32, collect ahead 32" in words


def test_a_callback_ends_a_run_with_collectors(tmp_path: Path) -> None:
    class Stop:
        def on_update(self, event: Any) -> str | None:
            return "enough" if event.updates >= 100 else None

    result = train(tmp_path, "run", total_steps=100_000, collectors=1, callbacks=[Stop()])
    assert (result.status, result.stop_reason) == ("finished", "enough")
    assert list(read(result.path / "evaluations.jsonl"))
