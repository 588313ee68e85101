"""Runs that learn from rollouts of collector processes: in step with them (PPO), and while they go on (APPO)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_asynchronous import summary
from test_asynchronous_faults import FAULTY, alive, kill_and_look, log_of, processes_of

import offbeat
import patience
import soak
from offbeat.errors import UsageError
from offbeat.observe.jsonl import read
from offbeat.run.checkpoint import Checkpoints
from pacing import Gated, Holding, Opening

SMALL: dict[str, Any] = {
    "hidden": (8,),
    "rollout_steps": 16,
    "epochs": 2,
    "minibatches": 2,
    "eval_episodes": 2,
    "eval_every": 0,
    "checkpoint_every": 0,
    "log_every": 50,
    "max_episode_steps": 30,
    "threads": 1,
    "logger": (),
    "quiet": True,
    "preset": None,
}


def train(out: Path, name: str, algorithm: str = "appo", env: Any = "Pendulum-v1", **settings: Any) -> Any:
    return offbeat.train(algorithm, env, out=str(out), name=name, **{**SMALL, **settings})


def learned(path: Path) -> dict[str, np.ndarray]:
    arrays = Checkpoints(path).load("latest").arrays
    return {name: array for name, array in arrays.items() if name.startswith("learner/")}


class Chunks:
    """The rows of every rollout, as a callback sees them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, np.ndarray]] = []
        self.lags: list[int] = []

    def on_chunk(self, event: Any) -> None:
        self.rows.append({name: np.array(column) for name, column in event.chunk.columns.items()})
        self.lags.append(event.updates - int(self.rows[-1]["version"][0]))


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("Pendulum-v1", {"num_envs": 3, "normalise_observations": True, "normalise_rewards": True}),
        ("CartPole-v1", {"num_envs": 2, "rate_control": "adaptive", "schedule": "linear"}),
    ],
)
def test_ppo_with_one_collector_gives_the_numbers_of_one_process(
    env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    alone = train(tmp_path, "alone", "ppo", env, total_steps=480, **settings)
    beside = train(tmp_path, "beside", "ppo", env, total_steps=480, collectors=1, **settings)
    mine, theirs = learned(alone.path), learned(beside.path)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    assert alone.evaluation == beside.evaluation
    assert alone.status == beside.status == "finished"


def test_ppo_learns_from_one_rollout_of_each_collector_at_a_time_and_never_from_old_ones(tmp_path: Path) -> None:
    seen = Chunks()
    result = train(tmp_path, "run", "ppo", total_steps=600, num_envs=4, collectors=2, callbacks=[seen])
    assert seen.lags == [0] * len(seen.lags)
    assert [len(rows["env"]) for rows in seen.rows] == [64] * len(seen.rows)
    assert all(set(rows["env"]) == {0, 1, 2, 3} for rows in seen.rows)
    assert summary(result.path)["updates"] == 4 * len(seen.rows)


@pytest.mark.parametrize(
    ("algorithm", "collectors", "ends"), [("ppo", 0, 192), ("ppo", 2, 192), ("appo", 0, 192), ("appo", 2, 160)]
)
def test_the_last_rollout_is_finished_and_learned_from(
    algorithm: str, collectors: int, ends: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"total_steps": 150, "num_envs": 4, "collectors": collectors, "quiet": False}
    run = train(tmp_path, "run", algorithm, **settings)
    assert f"150 steps ({ends}, to finish the last rollout)" in " ".join(capsys.readouterr().out.split())
    found = summary(run.path)
    rollout = 32 if collectors and algorithm == "appo" else 64
    assert (found["status"], found["env_steps"]) == ("finished", ends)
    assert found["updates"] == 4 * ends // rollout


def test_a_run_that_ended_with_a_whole_rollout_goes_on_to_a_larger_total(tmp_path: Path) -> None:
    run = train(tmp_path, "run", "ppo", total_steps=150, num_envs=4)
    offbeat.resume(run.path, total_steps=200, quiet=True)
    assert summary(run.path)["env_steps"] == 256
    whole = train(tmp_path, "whole", "ppo", total_steps=200, num_envs=4)
    mine, theirs = learned(run.path), learned(whole.path)
    for name in mine.keys() - {"learner/share_done"}:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


class OfEach(Chunks):
    """Ends the run when each of so many environments has made ten rollouts, whichever collector is faster."""

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self._made = Counter(dict.fromkeys(range(num_envs), 0))

    def on_chunk(self, event: Any) -> str | None:  # type: ignore[override]
        super().on_chunk(event)
        self._made.update(set(self.rows[-1]["env"].tolist()))
        return "enough" if min(self._made.values()) >= 10 else None


def test_rollouts_are_whole_and_go_on_where_the_one_before_them_ended(tmp_path: Path) -> None:
    seen = OfEach(4)
    train(tmp_path, "run", total_steps=10**6, num_envs=4, collectors=2, callbacks=[seen])
    follows: dict[int, tuple[int, int]] = {}
    for rows in seen.rows:
        assert len(rows["env"]) == 32
        assert len(set(rows["version"])) == 1, "the weights change within a rollout"
        for env, episode, step, ended in zip(
            rows["env"], rows["episode"], rows["step"], rows["terminated"] | rows["truncated"], strict=True
        ):
            assert (episode, step) == follows.get(env, (0, 0)), "a row is missing, or there twice"
            follows[env] = (episode + 1, 0) if ended else (episode, step + 1)
    assert set(follows) == {0, 1, 2, 3}


def test_a_queue_of_more_rollouts_lets_collectors_go_further_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = []
    for queue in (1, 6):
        seen = Holding(monkeypatch)
        settings = {"total_steps": 600, "num_envs": 2, "collectors": 1, "queue": queue}
        train(tmp_path, f"queue {queue}", callbacks=[seen], **settings)
        most.append(max(seen.lags))
    assert 0 < most[0] <= 2 * 4 < most[1]


def test_a_full_queue_drops_its_oldest_rollouts_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"total_steps": 300, "num_envs": 2, "collectors": 1}
    waiting = train(tmp_path, "block", callbacks=[Holding(monkeypatch)], **settings)
    dropping = train(tmp_path, "drop", callbacks=[Holding(monkeypatch)], when_full="drop-oldest", **settings)
    assert summary(waiting.path)["lost"]["dropped_rollouts"] == 0
    assert summary(dropping.path)["lost"]["dropped_rollouts"] > 0
    assert read(dropping.path / "metrics.jsonl")[-1]["dropped_rollouts"] > 0


def test_rollouts_older_than_max_policy_lag_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Holding(monkeypatch)
    settings = {"total_steps": 500, "num_envs": 2, "collectors": 1, "queue": 6, "max_policy_lag": 8}
    result = train(tmp_path, "run", callbacks=[seen], **settings)
    assert max(seen.lags) <= 8
    assert summary(result.path)["lost"]["stale_rollouts"] > 0


def test_a_small_max_policy_lag_cuts_no_turn_short(tmp_path: Path) -> None:
    result = train(tmp_path, "run", total_steps=300, num_envs=2, collectors=1, epochs=4, max_policy_lag=3)
    found = summary(result.path)
    assert found["updates"] == found["env_steps"] // 32 * 8


def test_a_queue_that_drops_loses_nothing_to_a_learner_that_keeps_up(tmp_path: Path) -> None:
    gate = tmp_path / "taken"
    settings = {"total_steps": 128, "num_envs": 2, "collectors": 1, "env": lambda: Gated(gate, every=16)}
    result = train(tmp_path, "run", when_full="drop-oldest", eval_env=Gated, callbacks=[Opening(gate)], **settings)
    assert summary(result.path)["lost"]["dropped_rollouts"] == 0


def test_a_resumed_run_ends_at_its_total_and_draws_other_noise(tmp_path: Path) -> None:
    first, second = Chunks(), Chunks()
    settings = {"total_steps": 320, "num_envs": 2, "collectors": 1, "sample_reuse": 3}
    run = train(tmp_path, "run", callbacks=[first], **settings)
    offbeat.resume(run.path, total_steps=640, quiet=True, callbacks=[second])
    assert summary(run.path)["env_steps"] <= 640 + 2 * 32
    assert first.rows[0]["action"].tolist() != second.rows[0]["action"].tolist()


def test_reward_shaping_hears_of_the_steps_of_all_collectors(tmp_path: Path) -> None:
    seen = Chunks()

    def steps_as_reward(reward: Any, step: int, total: int) -> Any:
        return np.full_like(reward, step)

    settings = {"total_steps": 640, "num_envs": 2, "collectors": 2, "reward_shaping": steps_as_reward}
    run = train(tmp_path, "run", "ppo", callbacks=[seen], **settings)
    assert 640 - 4 * 32 <= seen.rows[-1]["reward"].max() <= 640 + 4 * 32
    again = Chunks()
    offbeat.resume(run.path, total_steps=800, quiet=True, callbacks=[again], reward_shaping=steps_as_reward)
    assert again.rows[0]["reward"].min() >= 600


def test_settings_that_have_nothing_to_act_on_are_refused(tmp_path: Path) -> None:
    for settings, words in (
        ({"queue": 2}, "queue=2 needs collectors >= 1"),
        ({"when_full": "drop-oldest"}, "needs collectors >= 1"),
        ({"tau": 0.5}, "target_every"),
        ({"env": "CartPole-v1", "squash": True}, "squash needs Box actions"),
        ({"env": "CartPole-v1", "initial_log_std": -1.0}, "initial_log_std needs Box actions"),
    ):
        with pytest.raises(UsageError, match=words):
            train(tmp_path, "run", total_steps=64, **settings)


def test_a_rollout_is_learned_from_again_while_no_newer_one_waits(tmp_path: Path) -> None:
    for reuse in (1, 5):
        gate = tmp_path / f"turns {reuse}"
        settings = {"total_steps": 128, "num_envs": 2, "collectors": 1, "sample_reuse": reuse, "eval_env": Gated}
        env = partial(Gated, gate, every=16)  # no newer rollout is begun before the last one has had all its turns
        result = train(tmp_path, f"reuse {reuse}", env=env, callbacks=[Opening(gate, updates=4 * reuse)], **settings)
        assert summary(result.path)["updates"] == 4 * 4 * reuse


def test_in_one_process_a_rollout_has_all_its_turns(tmp_path: Path) -> None:
    result = train(tmp_path, "run", total_steps=128, num_envs=2, sample_reuse=3)
    assert summary(result.path)["updates"] == 3 * 4 * 4


@pytest.mark.parametrize("how", ["raise", "nan", "exit"])
def test_an_environment_that_goes_wrong_costs_no_more_than_its_rows(how: str, tmp_path: Path) -> None:
    seen = Chunks()
    kwargs = {"how": how, "once": str(tmp_path / "once"), "times": 1, "at": 7, "only": None, "helper": None}
    result = train(
        tmp_path,
        "run",
        env=FAULTY,
        eval_env="offbeat_quiet:make",
        env_kwargs=kwargs,
        total_steps=400,
        num_envs=2,
        collectors=1,
        max_episode_steps=None,
        callbacks=[seen],
    )
    found = summary(result.path)
    assert result.status == "finished"
    assert found["restarts"] == (1 if how == "exit" else 0)
    assert found["lost"]["abandoned_rollouts"] == (1 if how == "exit" else 0)
    rows = {name: np.concatenate([each[name] for each in seen.rows]) for name in seen.rows[0]}
    names = list(zip(*(rows[name].tolist() for name in ("env", "episode", "step")), strict=True))
    assert len(set(names)) == len(names)
    assert np.isfinite(rows["obs"]).all()


def test_a_run_with_collectors_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    settings = {"num_envs": 4, "collectors": 2, "normalise_observations": True, "normalise_rewards": True}
    settings |= {"target_every": 3, "tau": 0.5, "rate_control": "adaptive", "optimiser": "adamw"}
    first = train(tmp_path, "run", total_steps=300, **settings)
    before, saved = learned(first.path), summary(first.path)
    arrays = {name.removeprefix("learner/") for name in before}
    assert {"rate_factor", "observations/mean", "returns/running", "updates"} <= arrays
    assert any(name.startswith("target/") for name in arrays)
    assert any(name.startswith("actor_optimiser/") for name in arrays)
    again = offbeat.resume(first.path, total_steps=saved["env_steps"], quiet=True)
    for name, array in learned(again.path).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    more = offbeat.resume(first.path, total_steps=saved["env_steps"] + 300, quiet=True)
    found = summary(more.path)
    assert found["env_steps"] >= saved["env_steps"] + 300
    assert found["updates"] - saved["updates"] == (found["env_steps"] - saved["env_steps"]) // 32 * 4
    assert "begin new episodes" in log_of(more.path)


def command(out: Path, **settings: Any) -> list[str]:
    line = [
        sys.executable,
        "-m",
        "offbeat",
        "train",
        "appo",
        "--env",
        "Pendulum-v1",
        "--out",
        str(out),
        "--name",
        "run",
    ]
    for key, value in {**SMALL, **settings, "quiet": None, "logger": "none", "preset": "none", "hidden": 8}.items():
        line += [f"--{key.replace('_', '-')}", *([] if value is None else [str(value)])]
    return line


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_killed_collectors_and_parents_end_no_run(tmp_path: Path) -> None:
    """SIGKILL of collectors at random moments, and of the learner, which is resumed."""
    chance, shared = random.Random(2), set(os.listdir("/dev/shm"))
    line = command(tmp_path, total_steps=10**6, collectors=2, num_envs=2, checkpoint_every=100)
    for _ in range(soak.count(20)):
        run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        (tmp_path / "run" / "status.json").unlink(missing_ok=True)
        for _ in range(3):
            pids = processes_of(tmp_path / "run")
            time.sleep(chance.uniform(0, 0.5))
            victim = pids[f"collector {chance.randrange(2)}"]
            if victim and alive(victim):
                os.kill(victim, signal.SIGKILL)
        assert run.poll() is None, run.communicate()
        everybody = set(processes_of(tmp_path / "run").values())
        kill_and_look(run, everybody)
        assert set(os.listdir("/dev/shm")) <= shared
        line = [sys.executable, "-m", "offbeat", "resume", str(tmp_path / "run"), "--quiet"]
    saved = Checkpoints(tmp_path / "run").load("latest").values["progress"]["step"]
    done = offbeat.resume(tmp_path / "run", total_steps=saved + 300, quiet=True)
    assert done.status == "finished"
    found = summary(done.path)
    assert found["updates"] == found["env_steps"] // 16 * 4


def test_a_wish_to_stop_is_heard_while_collectors_are_slow(tmp_path: Path) -> None:
    line = command(tmp_path, total_steps=10**6, collectors=1, num_envs=1, rollout_steps=10**5)
    run = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    processes_of(tmp_path / "run")
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=patience.SECONDS)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
