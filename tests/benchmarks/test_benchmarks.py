"""The benchmarks run in the development environment, with Offbeat and Stable-Baselines3 alone."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
BOTH = ["offbeat", "stable-baselines3"]


def run(script: str, *arguments: str, expected: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def results(out: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    assert record["machine"]["cores"] >= 1
    return record


@pytest.fixture
def on_the_benchmarks_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.slow
def test_learner_measures_both_libraries_against_the_floor(tmp_path: Path) -> None:
    only = ",".join([*BOTH, "plain script", "matrix products", "matrix products in the cache"])
    quick = ["--rounds", "2", "--seconds", "0.05", "--shape", "small", "--threads", "1", "--capacity", "2000"]
    done = run("learner.py", "--only", only, "--out", str(tmp_path), *quick)
    (case,) = results(tmp_path, "learner")["cases"]
    scores = {score["name"]: score for score in case["updates_per_second"]}
    assert list(scores) == only.split(",")
    assert all(len(score["rounds"]) == 2 and min(score["rounds"]) > 0 for score in scores.values())
    assert scores["stable-baselines3"]["versions"]["stable-baselines3"]
    assert re.search(r"\| stable-baselines3 \|.*\| \d+\.\d\d x \| \d+% \|", done.stdout)
    assert (tmp_path / "learner.md").read_text().strip() in done.stdout
    assert (tmp_path / "learner.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.slow
def test_replay_measures_sampling_adding_and_memory(tmp_path: Path) -> None:
    quick = ["--rounds", "1", "--seconds", "0.02", "--capacity", "20000", "--out", str(tmp_path)]
    run("replay.py", "--only", ",".join(BOTH), *quick)
    record = results(tmp_path, "replay")
    expected = ["sample 256", "sample 8192", "add, 1 environment", "add, 64 environments", "add, 1024 environments"]
    assert list(record["rows_per_second"]) == expected
    for scores in record["rows_per_second"].values():
        assert [score["name"] for score in scores] == BOTH
        assert all(score["rounds"][0] > 0 for score in scores)
    assert all(record["resident_bytes"][name] / 20_000 > 100 for name in BOTH)


@pytest.mark.slow
def test_steps_per_second_are_measured_after_learning_has_started(tmp_path: Path) -> None:
    quick = ["--rounds", "1", "--first-step", "1010", "--steps", "20", "--out", str(tmp_path)]
    run("end_to_end.py", "--only", ",".join(BOTH), "--threads", "1", *quick)
    record = results(tmp_path, "end_to_end")
    assert record["steps"] == [1010, 1030]
    assert [score["name"] for score in record["steps_per_second"]] == BOTH
    assert all(0 < score["rounds"][0] < math.inf for score in record["steps_per_second"])


@pytest.mark.slow
def test_final_returns_are_measured_on_the_same_episodes(tmp_path: Path) -> None:
    quick = ["--learning", "--learning-steps", "1010", "--seeds", "1", "--environments", "Pendulum-v1"]
    run("end_to_end.py", "--only", ",".join(BOTH), "--threads", "1", "--out", str(tmp_path), *quick)
    record = results(tmp_path, "learning")
    returns = record["returns_by_seed_and_episode"]["Pendulum-v1"]
    assert all(len(returns[name][0]) == 10 for name in BOTH)
    assert all(-2_000 < total < 0 for name in BOTH for total in returns[name][0])


@pytest.mark.slow
def test_whole_on_policy_training_and_its_learner_alone_are_measured(tmp_path: Path) -> None:
    quick = ["--rounds", "1", "--seconds", "0.05", "--threads", "1", "--first-step", "4096", "--steps", "4096"]
    names = ["offbeat", "stable-baselines3 1 thread"]
    done = run("appo.py", "--only", ",".join(names), "--environment", "Pendulum-v1", *quick, "--out", str(tmp_path))
    record = results(tmp_path, "appo")
    assert record["steps"] == [4096, 8192]
    assert [score["name"] for score in record["steps_per_second"]] == names
    assert all(0 < score["rounds"][0] < math.inf for score in record["steps_per_second"])
    (case,) = record["rollouts_per_second"]
    assert (case["threads"], [score["name"] for score in case["scores"]]) == (1, ["offbeat"])
    assert 0 < case["scores"][0]["rounds"][0] < math.inf
    assert re.search(r"\| stable-baselines3 1 thread \|.*\| \d+\.\d\d x \|", done.stdout)


@pytest.mark.slow
def test_a_finished_on_policy_run_is_not_trained_again(tmp_path: Path) -> None:
    few = ["--learning", "--only", "offbeat", "--environment", "Pendulum-v1", "--learning-steps", "4096"]
    where = ["--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    run("appo.py", *few, "--seeds", "1", *where)
    (first,) = results(tmp_path, "appo_learning")["runs"]["offbeat"]
    run("appo.py", *few, "--seeds", "2", *where)
    same, second = results(tmp_path, "appo_learning")["runs"]["offbeat"]
    assert same == first
    assert len(second["returns"]) == 20
    assert second["returns"] != first["returns"]
    assert all(-2_000 < total < 0 for total in second["returns"])
    assert second["settings"]["collectors"] == 2


@pytest.mark.usefixtures("on_the_benchmarks_path")
def test_the_rollout_learners_do_the_same_updates() -> None:
    from learners.offbeat_appo import Contestant as Offbeat
    from learners.stable_baselines3_ppo import Contestant as StableBaselines3

    threads = torch.get_num_threads()  # stays as it is for other tests
    ours, theirs = Offbeat(threads, 17, 6), StableBaselines3(threads, 17, 6)
    for contestant in (ours, theirs, ours, theirs):
        contestant.learn()
    assert ours._agent.learner.updates == 2 * 5 * 8
    assert theirs._model._n_updates == 2 * 5
    assert len(ours._agent.experience) == theirs._model.rollout_buffer.observations.shape[0] == 4096


@pytest.mark.usefixtures("on_the_benchmarks_path")
def test_the_standard_error_of_a_difference_needs_two_numbers_per_group() -> None:
    from appo import standard_error

    assert standard_error([[1.0, 3.0], [2.0, 2.0]]) == pytest.approx(1.0)
    assert standard_error([[1.0, 3.0], [2.0]]) == float("inf")


def test_sample_factory_has_the_common_versions_except_numpy() -> None:
    def pins(file: Path) -> dict[str, str]:
        found = (re.match(r"([\w-]+)(?:\[.*\])?==(\S+)", line) for line in file.read_text().splitlines())
        return {each[1]: each[2] for each in found if each}

    own, everybody = pins(BENCHMARKS / "requirements" / "sample_factory.txt"), pins(ROOT / "constraints.txt")
    differing = [name for name in own.keys() & everybody.keys() if own[name] != everybody[name]]
    assert differing == ["numpy"]
    assert {"torch", "gymnasium", "mujoco"} <= own.keys() & everybody.keys()


def test_an_unknown_contestant_is_refused_with_a_list_of_names() -> None:
    done = run("learner.py", "--only", "sb4", expected=1)
    assert "sb4" in done.stderr
    assert "stable-baselines3" in done.stderr


@pytest.mark.usefixtures("on_the_benchmarks_path")
def test_the_failure_of_a_contestant_has_its_traceback() -> None:
    from contest import Entry, workers

    failure = pytest.raises(RuntimeError, match=r"(?s)nobody failed:.*No module named 'learners\.nobody'")
    with failure, workers([Entry("nobody", "learners.nobody")], 1):
        pass


@pytest.mark.usefixtures("on_the_benchmarks_path")
def test_rounds_are_interleaved_and_ratios_taken_within_each() -> None:
    from contest import Score, compete
    from report import ratio

    class Fake:
        def __init__(self, name: str) -> None:
            self.score = Score(name, {}, "")

    clock: list[str] = []

    def measure(worker: Any) -> float:
        clock.append(worker.score.name)
        slow_machine = 10.0 if len(clock) <= 2 else 1.0  # the first round is ten times slower for both
        return (3.0 if worker.score.name == "fast" else 1.0) / slow_machine

    fast, plain = compete([Fake("fast"), Fake("plain")], 3, measure)
    assert clock == ["fast", "plain", "plain", "fast", "fast", "plain"]
    assert ratio(fast, plain) == pytest.approx(3.0)


@pytest.mark.usefixtures("on_the_benchmarks_path")
def test_the_floor_holds_the_products_of_one_update() -> None:
    from learners.products import sac, td3

    shape = {"observation": 17, "action": 6, "hidden": [256, 256], "batch": 256}

    def counted(products: Any) -> int:
        return sum(members * rows * inner * columns for members, rows, inner, columns, _ in products)

    weights = {"actor": 17 * 256 + 256 * 256 + 256 * 12, "critic": 23 * 256 + 256 * 256 + 256}
    inner = {"actor": weights["actor"] - 17 * 256, "critic": weights["critic"] - 23 * 256}
    actor = 2 * weights["actor"] + weights["actor"] + inner["actor"]  # both observations, gradients of weights, inputs
    critics = 2 * (3 * weights["critic"] + weights["critic"] + inner["critic"] + inner["critic"] + 256 * 6)
    assert counted(sac(shape)) == 256 * (actor + critics)
    # TD3: the target's action and values, the critics; and, in every second update, the actor through one critic.
    plain = weights["actor"] - 256 * 6  # means alone
    often = plain + 2 * (2 * weights["critic"] + weights["critic"] + inner["critic"])
    seldom = plain + weights["critic"] + inner["critic"] + 256 * 6 + plain + plain - 17 * 256
    assert counted(td3(shape, False)) == 256 * often
    assert counted(td3(shape, True)) == 256 * (often + seldom)


@pytest.mark.usefixtures("on_the_benchmarks_path")
def test_the_document_holds_the_tables_of_the_committed_results() -> None:
    from report import DOCUMENT, RESULTS, include

    document = DOCUMENT.read_text()
    for name in ("learner", "replay", "end_to_end", "learning", "async", "async_learning", "appo", "appo_learning"):
        result = RESULTS / f"{name}.md"
        if result.exists():
            assert include(document, name, result.read_text().rstrip("\n")) == document
        else:
            assert include(document, name, "| table |").count("| table |") == 1


@pytest.mark.usefixtures("on_the_benchmarks_path")
def test_the_command_is_measured_with_defaults_and_manual_settings_idle_and_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import command

    lines = []

    def measured(flags: list[str], first: int, last: int, log_every: int) -> float:
        lines.append(" ".join(flags))
        return 200.0 if "--collectors" in flags else 100.0

    monkeypatch.setattr(command, "steps_per_second", measured)
    monkeypatch.setattr(sys, "argv", ["command.py", "--rounds", "1", "--busy-rounds", "1", "--out", str(tmp_path)])
    command.main()
    record = results(tmp_path, "command")
    assert list(record["idle"]) == list(record["busy"]) == [regime.name for regime in command.REGIMES]
    assert "sac --env HalfCheetah-v5 --seed 0" in lines
    assert "sac --env HalfCheetah-v5 --slack 128 --collectors 1 --seed 0" in lines
    text = capsys.readouterr().out
    assert "| in process, defaults | 100 | 1.00 |" in text
    assert "one collector makes 2.00 x the steps" in text
