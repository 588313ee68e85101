"""Runs whose collectors, environments, evaluation and parents are killed, hung, stopped and broken."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_asynchronous import SMALL, stored, summary, train

import offbeat
import patience
import soak
from offbeat.errors import OffbeatError
from offbeat.run.checkpoint import Checkpoints

FAULTY = "faulty_envs:make"


def faulty(
    out: Path,
    how: str,
    *,
    steps: int = 400,
    times: int = 1,
    at: int = 7,
    only: int | None = None,
    helper: str | None = None,
    **settings: Any,
) -> offbeat.RunResult:
    """Two environments in one collector, one of which goes wrong, on well-behaved evaluation environments."""
    kwargs = {"how": how, "once": str(out / "once"), "times": times, "at": at, "only": only, "helper": helper}
    return train(
        out,
        "run",
        env=FAULTY,
        eval_env="offbeat_quiet:make",
        total_steps=steps,
        num_envs=2,
        env_kwargs=kwargs,
        **settings,
    )


def log_of(path: Path) -> str:
    return (path / "log.txt").read_text()


def nothing_starts(path: Path) -> bool:
    """Whether every process of a run has started, as status.json says: before that, a signal ends it."""
    processes = json.loads((path / "status.json").read_text())["processes"]
    return bool(processes) and all(each["state"] != "starting" for each in processes)


def processes_of(path: Path) -> dict[str, int]:
    """The pid of every process of a run, by name, as status.json has them."""
    found: dict[str, int] = {}

    def started() -> bool:
        if (path / "status.json").exists():
            processes = json.loads((path / "status.json").read_text())["processes"]
            found.update({each["name"]: each["pid"] for each in processes})
        return "collector 0" in found

    patience.wait_until(started, "the run has no collectors")
    return found


def command(out: Path, name: str, **settings: Any) -> list[str]:
    flags = {**SMALL, "env": "Pendulum-v1", "out": out, "name": name, **settings}
    line = [sys.executable, "-m", "offbeat", "train", "sac"]
    for key, value in flags.items():
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            line += [flag] if value else []
        else:
            values = value if isinstance(value, tuple) else (value,)
            line += [flag, *(str(each) for each in values or ("none",))] if value is not None else [flag, "none"]
    return line


@pytest.mark.parametrize("how", ["raise", "nan"])
def test_an_environment_that_goes_wrong_is_restarted_alone(how: str, tmp_path: Path) -> None:
    result = faulty(tmp_path, how, collectors=1)
    found = summary(result.path)
    assert (result.status, found["restarts"]) == ("finished", 0)
    assert (found["restarted_environments"], found["lost"]["quarantined_rows"]) == (
        (1, 0) if how == "raise" else (0, 1)
    )
    assert "restarted alone" in log_of(result.path)
    _, [rows] = stored(result.path)
    assert np.isfinite(rows["next_obs"]).all()
    cut = np.flatnonzero(rows["truncated"] & (rows["step"] < 19))
    assert rows["step"][cut].tolist() == [5], "the episode does not end at its last good step"
    other = rows["env"] != rows["env"][cut[0]]
    np.testing.assert_array_equal(rows["step"][other], np.arange(other.sum()) % 20)


def test_an_environment_that_hangs_is_interrupted_and_restarted_alone(tmp_path: Path) -> None:
    result = faulty(tmp_path, "sleep", collectors=1, hang_seconds=1)
    found = summary(result.path)
    assert (result.status, (tmp_path / "once").read_text()) == ("finished", ".")
    assert found["restarted_environments"] >= 1  # on a busy machine, other steps may take a second, too
    assert "its environment is interrupted" in log_of(result.path)


def test_a_collector_that_heeds_no_signal_is_ended_and_replaced(tmp_path: Path) -> None:
    result = faulty(tmp_path, "deaf", collectors=1, hang_seconds=1)
    found = summary(result.path)
    assert result.status == "finished"
    assert found["restarts"] >= 1  # on a busy machine, others may not have moved for two seconds, either
    assert "has not moved" in log_of(result.path)
    assert "and is killed" in log_of(result.path)
    assert found["updates"] == found["env_steps"] - 50


def test_a_collector_that_is_lost_is_replaced(tmp_path: Path) -> None:
    result = faulty(tmp_path, "exit", collectors=1)
    found = summary(result.path)
    assert (result.status, found["restarts"]) == ("finished", 1)
    assert "exit code 7" in log_of(result.path)
    assert found["updates"] == found["env_steps"] - 50
    _, [rows] = stored(result.path)
    names = set(zip(*(rows[name].tolist() for name in ("env", "episode", "step")), strict=True))
    assert len(names) == len(rows["env"])
    assert (rows["truncated"] & (rows["step"] < 19)).sum() == 2, "both episodes end where the collector was lost"


def test_a_crash_loop_stops_the_run_with_a_checkpoint_and_words(tmp_path: Path) -> None:
    """Learning had begun; then nothing works any more."""

    class Break:
        def on_chunk(self, event: Any) -> None:
            if event.step >= 200:
                (tmp_path / "broken").touch()

    with pytest.raises(OffbeatError, match=r"(?s)exit code 7.*3 times in a row"):
        train(
            tmp_path,
            "run",
            env=FAULTY,
            eval_env="offbeat_quiet:make",
            env_kwargs={"how": "exit", "once": str(tmp_path / "once"), "times": 0, "broken": str(tmp_path / "broken")},
            callbacks=[Break()],
            total_steps=5_000,
            collectors=1,
            max_crashes=3,
        )
    found = summary(tmp_path / "run")
    assert found["status"] == "failed"
    assert found["restarts"] == 2
    saved = Checkpoints(tmp_path / "run").load("latest").values["progress"]
    assert saved["step"] == found["env_steps"] >= 200
    (tmp_path / "broken").unlink()
    assert offbeat.resume(tmp_path / "run", total_steps=saved["step"] + 100).status == "finished"


def test_an_environment_that_always_raises_stops_the_run_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match="the motor is gone"):
        train(
            tmp_path,
            "run",
            env=FAULTY,
            eval_env="offbeat_quiet:make",
            env_kwargs={"how": "raise", "once": str(tmp_path / "once"), "times": 10**6, "at": 1},
            total_steps=500,
            collectors=1,
            max_crashes=2,
        )


def test_one_bad_environment_among_good_ones_stops_the_run(tmp_path: Path) -> None:
    """The good one's rows are no reason to go on for ever."""
    with pytest.raises(OffbeatError, match="the motor is gone"):
        faulty(tmp_path, "raise", steps=10**6, times=10**6, at=1, only=1, collectors=1, max_crashes=3)


def test_the_checkpoint_in_need_is_made_when_several_collectors_are_lost_at_once(tmp_path: Path) -> None:
    class Break:
        def on_chunk(self, event: Any) -> None:
            if event.step >= 200:
                (tmp_path / "broken").touch()

    kwargs = {"how": "exit", "once": str(tmp_path / "once"), "times": 0, "broken": str(tmp_path / "broken")}
    with pytest.raises(OffbeatError, match="times in a row"):
        train(
            tmp_path,
            "run",
            env=FAULTY,
            eval_env="offbeat_quiet:make",
            env_kwargs=kwargs,
            callbacks=[Break()],
            total_steps=5_000,
            collectors=2,
            num_envs=2,
            max_crashes=2,
        )
    saved = Checkpoints(tmp_path / "run").load("latest").values["progress"]
    assert saved["step"] == summary(tmp_path / "run")["env_steps"] >= 200


def badly_evaluated(out: Path, how: str, **settings: Any) -> offbeat.RunResult:
    """A run whose evaluation environment goes wrong once."""
    kwargs = {"how": how, "once": str(out / "once"), "at": 3}
    evaluated_on = {"eval_env": lambda: __import__("faulty_envs").make(**kwargs)}
    return train(out, "run", env="offbeat_quiet:make", collectors=1, **evaluated_on, **settings)


def test_an_evaluation_that_hangs_is_made_again(tmp_path: Path) -> None:
    result = badly_evaluated(tmp_path, "deaf", total_steps=200, hang_seconds=1)
    assert result.evaluation is not None
    assert "the evaluation process made no progress" in log_of(result.path)
    assert summary(result.path)["restarts"] >= 1  # on a busy machine, a collector may not have moved for a second


def test_what_an_environment_has_started_ends_with_its_collector(tmp_path: Path) -> None:
    result = faulty(tmp_path, "exit", steps=200, collectors=1, helper=str(tmp_path / "helpers"))
    pairs = [tuple(map(int, line.split())) for line in (tmp_path / "helpers").read_text().splitlines()]
    helpers = [pid for pid, parent in pairs if parent != os.getpid()]
    for pid, parent in pairs:
        if parent == os.getpid():
            os.kill(pid, signal.SIGKILL)  # of the environments whose spaces were read here
    assert len(helpers) == 8  # of two environments each, in the collector and in the one after it
    assert result.status == "finished"
    until = time.monotonic() + 60
    while any(alive(pid) for pid in helpers):
        assert time.monotonic() < until, "what an environment has started outlives its collector"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_to_every_process_of_a_run_stops_it_in_good_order(number: int, tmp_path: Path) -> None:
    line = command(tmp_path, "run", total_steps=10**6, collectors=2, num_envs=2, log_every=200)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as run:
        metrics = tmp_path / "run" / "metrics.jsonl"
        patience.wait_until(lambda: metrics.exists() and metrics.read_text(), "the run does not log")
        patience.wait_until(lambda: nothing_starts(tmp_path / "run"), "a collector does not start")
        for pid in processes_of(tmp_path / "run").values():
            os.kill(pid, number)
        assert run.wait(patience.SECONDS) == 0
    states = Checkpoints(tmp_path / "run").load("latest").values["collector"]["collectors"]
    assert all(own["state"] is not None for own in states)


def test_a_killed_evaluation_is_made_again(tmp_path: Path) -> None:
    result = badly_evaluated(tmp_path, "exit", total_steps=300, eval_every=100)
    assert [evaluation.step >= 100 * (index + 1) for index, evaluation in enumerate(result.history)] == [True] * 3
    assert "the evaluation process is restarted" in log_of(result.path)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_nothing_survives_a_killed_parent_and_the_run_goes_on(tmp_path: Path) -> None:
    chance, shared = random.Random(1), set(os.listdir("/dev/shm"))
    line = command(tmp_path, "run", total_steps=10**6, collectors=2, num_envs=2, checkpoint_every=100, eval_every=200)
    for _ in range(soak.count(50)):
        run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        (tmp_path / "run" / "status.json").unlink(missing_ok=True)
        pids = set(processes_of(tmp_path / "run").values())
        time.sleep(chance.uniform(0, 1.5))
        pids |= set(processes_of(tmp_path / "run").values())
        kill_and_look(run, pids)
        assert set(os.listdir("/dev/shm")) <= shared
        line = [sys.executable, "-m", "offbeat", "resume", str(tmp_path / "run"), "--quiet"]
    step = Checkpoints(tmp_path / "run").load("latest").values["progress"]["step"]
    done = offbeat.resume(tmp_path / "run", total_steps=step + 300, quiet=True)
    assert done.status == "finished"
    found = summary(done.path)
    assert found["updates"] == found["env_steps"] - 50


def kill_and_look(run: subprocess.Popen[str], pids: set[int]) -> None:
    """The parent is killed, and soon nobody is left."""
    run.kill()
    run.wait()
    patience.wait_until(lambda: not any(alive(pid) for pid in pids if pid), "processes survive their parent")


def alive(pid: int) -> bool:
    """A zombie is not: nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_ratio_recovers_when_a_stopped_collector_goes_on(tmp_path: Path) -> None:
    line = command(tmp_path, "run", total_steps=3_000 if soak.FULL else 1_000, collectors=1, log_every=100)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as run:
        pid = processes_of(tmp_path / "run")["collector 0"]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(30 if soak.FULL else 3)
        assert run.poll() is None
        os.kill(pid, signal.SIGCONT)
        assert run.wait(300) == 0
    found = summary(tmp_path / "run")
    assert found["restarts"] == 0
    assert found["updates"] == found["env_steps"] - 50
    for each in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()):
        assert abs(each["update"] - (each["step"] - 50)) <= 40


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_wish_to_stop_is_heard_and_leaves_a_run_that_goes_on(signals: list[int], tmp_path: Path) -> None:
    line = command(tmp_path, "run", total_steps=10**6, collectors=2, num_envs=2)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        pids = processes_of(tmp_path / "run")
        run.send_signal(signals[0])
        for number in signals[1:]:
            time.sleep(1.5)  # later than what counts as the same request
            run.send_signal(number)
        run.wait(patience.SECONDS)
    assert not any(alive(pid) for pid in pids.values() if pid)
    if len(signals) == 1:
        assert run.returncode == 0
        assert summary(tmp_path / "run")["status"] == "stopped"
    step = Checkpoints(tmp_path / "run").load("latest").values["progress"]["step"]
    assert offbeat.resume(tmp_path / "run", total_steps=step + 100).status == "finished"
