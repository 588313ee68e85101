"""The command: flags become settings, an error is one paragraph, exit codes, and handlers import late."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import patience
from each_setting import changed, every_setting, named, needed
from offbeat import presets
from offbeat.algorithms.configs import Config, Fixed, Learned, Run
from offbeat.cli import main
from offbeat.coercion import text_of
from offbeat.errors import CheckpointError, UsageError
from offbeat.flags import flag
from offbeat.settings import (
    Setting,
    make,
    make_config,
    make_learner_config,
    read,
    train_settings,
    with_changes,
    write_yaml,
)
from offbeat.training_commands import read_train

HEAVY = ("torch", "gymnasium", "rich", "tensorboard", "matplotlib", "jax")


@dataclass
class Calls:
    """Records what the handlers call, instead of training."""

    made: list[tuple[Any, ...]]
    raising: BaseException | None = None
    findings: tuple[Any, ...] = ()

    def __call__(self, name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self.made.append((name, *arguments, options))
            if self.raising is not None:
                raise self.raising
            return answer()

        return called


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    calls = Calls([])
    finished = SimpleNamespace(path=Path("runs/one"), status="stopped")
    evaluated = SimpleNamespace(
        **{"mean_return": 2.0, "std_return": 1.0, "episodes": 2, "mean_length": 15.0, "success_rate": 0.5},
        video=Path("v.gif"),
    )
    fakes: dict[str, dict[str, Any]] = {
        "offbeat.run.api": {
            "train_config": calls("train", lambda: finished),
            "resume": calls("resume", lambda: finished),
        },
        "offbeat.run.saved_policy": {"evaluate": calls("evaluate", lambda: evaluated)},
        "offbeat.run.play": {"play_run": calls("play", lambda: None)},
        "offbeat.run.checkpoint": {"digest": calls("digest", lambda: "ab12")},
        "offbeat.envs.check": {"check_env": calls("check", lambda: list(calls.findings))},
    }
    for package in ("offbeat.run", "offbeat.envs"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    for name, functions in fakes.items():
        module = types.ModuleType(name)
        vars(module).update(functions)
        package, _, child = name.rpartition(".")
        monkeypatch.setitem(sys.modules, name, module)
        setattr(sys.modules[package], child, module)
    monkeypatch.chdir(tmp_path)
    return calls


def parsed(line: str) -> Config:
    return read_train("sac", line.split())


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """The error message of a usage error. Checks that it is one line, that nothing else is printed and no file made."""
    before = sorted(Path.cwd().rglob("*"))
    assert main(line.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("offbeat: error: ")
    assert output.err.count("\n") == 1
    assert sorted(Path.cwd().rglob("*")) == before
    return output.err


def test_flags_become_settings() -> None:
    config = parsed(
        "--env Pendulum-v1 --total-steps 2e4 --hidden 64 32 --temperature fixed --temperature-value 0.1 "
        "--env-kwargs g=9.81 render=false tiny=1e-3 word=a --logger none --layer-norm --quiet --actor-schedule m:f "
        "--critic_hidden=8,8 --log-std-min -5 --no-normalise-rewards"
    )
    kwargs = {"g": 9.81, "render": False, "tiny": 1e-3, "word": "a"}
    changed = {"env": "Pendulum-v1", "preset": "Pendulum-v1", "total_steps": 20_000, "env_kwargs": kwargs}
    assert config.run == make(Run, {**changed, "logger": (), "quiet": True})
    assert config.learner == make_learner_config(
        "sac",
        hidden=(64, 32),
        critic_hidden=(8, 8),
        temperature=Fixed(0.1),
        layer_norm=True,
        actor_schedule="m:f",
        log_std_min=-5.0,
    )


def flags_for(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag(key if value else f"no_{key}")]
    if isinstance(value, dict):
        return [flag(key), *(f"{name}={json.dumps(one)}" for name, one in value.items())]
    return [flag(key), *text_of(value).split()]


@pytest.mark.parametrize(("algorithm", "each"), every_setting(), ids=named)
def test_every_setting_is_a_flag_with_the_same_meaning_as_in_python(algorithm: str, each: Setting) -> None:
    value = changed(algorithm, each)[0] if each.name != "preset" else "Pendulum-v1"
    given = {"env": "X", **needed(each), each.name: value}
    line = [part for key, needs in given.items() for part in flags_for(key, needs)]
    assert read_train(algorithm, line) == presets.assemble(algorithm, read(train_settings(algorithm), given))


def test_the_order_of_flags_does_not_matter() -> None:
    groups = [
        "--env Pendulum-v1",
        "--temperature fixed",
        "--temperature-value 0.1",
        "--hidden 64 64",
        "--env-kwargs g=1 h=2",
        "--quiet",
        "--logger tensorboard",
        "--seed 3",
    ]
    expected = parsed(" ".join(groups))
    for seed in range(20):
        random.Random(seed).shuffle(groups)
        assert parsed(" ".join(groups)) == expected


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: A\ngamma: 0.9\nquiet: true\ntemperature: {kind: fixed, value: 0.5}\nenv_kwargs: {g: 1}\n")
    config = parsed(f"--config {file} --gamma 0.8")
    assert (config.run.environment.env, config.learner.returns.gamma, config.learner.target.tau) == ("A", 0.8, 0.005)
    assert config.learner.temperature == Fixed(0.5)
    assert not parsed(f"--no-quiet --config {file}").run.output.quiet
    assert parsed(f"--config {file} --temperature fixed").learner.temperature == Fixed(0.5)
    assert parsed(f"--config {file} --temperature learned").learner.temperature == Learned()
    assert parsed(f"--config {file} --temperature-value 0.1").learner.temperature == Fixed(0.1)
    assert parsed(f"--config {file} --env-kwargs h=2").run.environment.env_kwargs == {"g": 1, "h": 2}
    assert parsed(f"--config {file} --env-kwargs g=2").run.environment.env_kwargs == {"g": 2}
    assert parsed(f"--config {file} --env-kwargs none").run.environment.env_kwargs == {}
    with pytest.raises(UsageError, match="--temperature-initial needs --temperature learned"):
        parsed(f"--config {file} --temperature-initial 0.1")


def test_a_flag_can_correct_a_file_that_would_be_refused_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: A\ncapacity: 10\n")
    assert parsed(f"--config {file} --warmup-steps 5").run.pace.warmup_steps == 5


def test_the_config_of_a_run_repeats_it(tmp_path: Path) -> None:
    config = with_changes(make_config("sac", {"env": "A"}), temperature=Fixed(0.3), hidden=[8], reward_scale=1e-7)
    (tmp_path / "config.yaml").write_text(write_yaml(config, {"offbeat": "0"}))
    assert parsed(f"--config {tmp_path / 'config.yaml'}") == config


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["no command", "train, resume"]),
        ("trian sac", ["'trian'", "did you mean train?"]),
        ("train", ["needs an algorithm", "sac"]),
        ("train --env X sac", ["needs an algorithm as its first argument"]),
        ("train sca --env X", ["'sca'", "did you mean sac?"]),
        ("train sac", ["--env is missing"]),
        ("train sac --env", ["--env needs a value"]),
        ("train sac --env --quiet", ["--env needs a value"]),
        ("train sac --env X --hidden --quiet", ["--hidden needs a value"]),
        ("train sac --env X --totl-steps 5", ["--totl-steps", "did you mean --total-steps?"]),
        ("train sac --env X --no-quit", ["--no-quit", "did you mean --no-quiet?"]),
        ("train sac --env X --xyzzy", ["--xyzzy", "see offbeat train sac --help"]),
        ("train sac --env X --total-steps abc", ["--total-steps='abc'", "a whole number"]),
        ("train sac --env X --total-steps 0", ["--total-steps=0", "at least 1"]),
        ("train sac --env X --total-steps 5 6", ["does not take '6'"]),
        ("train sac --env X --gamma 1.5", ["--gamma=1.5", "at most 1"]),
        ("train sac --env X --hidden 64 x", ["--hidden='64,x'", "whole number"]),
        ("train sac --env X --activation rleu", ["--activation='rleu'", "did you mean relu?"]),
        ("train sac --env X --logger wandbe", ["--logger='wandbe'", "tensorboard", "wandb"]),
        ("train sac --env X --stop-return 5 --eval-every 0", ["stop_return=5", "eval_every=0"]),
        ("train sac --env X --temperature fixd", ["--temperature='fixd'", "did you mean fixed?"]),
        ("train sac --env X --temperature-value 1", ["--temperature-value needs --temperature fixed"]),
        ("train sac --env X --temperature fixed --temperature-initial 1", ["needs --temperature learned"]),
        ("train sac --env X --env-kwargs g", ["--env-kwargs 'g'", "key=value"]),
        ("train sac --env X --env-kwargs g=[1", ["'g=[1'", "not YAML"]),
        ("train sac --env X --quiet=true", ["--quiet=true", "takes none"]),
        ("train sac --env X --seed 1 --seed=2", ["--seed is given twice"]),
        ("train sac --env X --layer-norm --no-layer-norm", ["--layer-norm is given twice"]),
        ("train sac --env X -z", ["'-z'"]),
        ("train sac X", ["does not take 'X'", "given as --env X"]),
        ("train sac --env X --warmup-steps 9 --capacity 5", ["warmup_steps=9", "capacity=5"]),
        ("train sac --config nope.yaml", ["nope.yaml cannot be read"]),
        ("train sac --config typo.yaml", ["typo.yaml", "'gama'", "did you mean gamma?"]),
        ("train sac --config td3.yaml", ["td3.yaml", "another algorithm than sac"]),
        ("resume", ["offbeat resume needs RUN"]),
        ("resume nope", ["RUN='nope' is not a directory"]),
        ("resume . extra", ["does not take 'extra'"]),
        ("resume . --total-steps -1", ["--total-steps=-1", "at least 1"]),
        ("resume . --checkpont X", ["did you mean --checkpoint?"]),
        ("resume . --learning-starts 3", ["use --warmup-steps"]),
        ("eval . --episodes 0", ["--episodes=0", "at least 1"]),
        ("eval . --episods 5", ["did you mean --episodes?"]),
        ("play . --episodes 0", ["--episodes=0", "at least 1"]),
        ("play nope", ["RUN='nope'"]),
        ("digest nope", ["RUN='nope'"]),
        ("check-env", ["offbeat check-env needs ENV"]),
        ("check-env --env-kwargs g=1 X", ["'X'", "put ENV before --env-kwargs"]),
    ],
)
def test_usage_error_is_one_paragraph_with_exit_code_2(
    line: str, words: list[str], calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("typo.yaml").write_text("gama: 0.9\n")
    Path("td3.yaml").write_text("algorithm: td3\n")
    error = refused(capsys, line)
    for word in words:
        assert word in error
    assert calls.made == []


def test_train_passes_the_config_and_prints_the_path_last(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sac", "--env", "X", "--quiet"]) == 0
    assert calls.made == [("train", make_config("sac", {"env": "X", "quiet": True, "preset": None}), {})]
    assert capsys.readouterr().out.splitlines()[-1] == "run: runs/one"


def test_resume_passes_totals_and_prints_the_path_last(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", "--total-steps", "1e5", str(tmp_path), "--checkpoint", "step-000000000100"]) == 0
    options = {"total_steps": 100_000, "checkpoint": "step-000000000100"}
    assert calls.made == [("resume", tmp_path, options)]
    assert capsys.readouterr().out == "run: runs/one\n"


def test_resume_accepts_the_settings_of_the_algorithm_of_the_run(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(write_yaml(make_config("dqn", {"env": "X"}), {"offbeat": "0"}))
    line = ["resume", "--learning-rate", "1e-4", str(tmp_path), "--quiet", "--exploration-final", "0.1"]
    assert main([*line, "--env-kwargs", "g=9"]) == 0
    changes = {"learning_rate": 1e-4, "quiet": True, "exploration_final": 0.1, "env_kwargs": {"g": 9}}
    assert calls.made == [("resume", tmp_path, {"checkpoint": "latest", **changes})]
    assert main(["resume", str(tmp_path), "--actor-schedule", "linear"]) == 2
    assert "there is no flag --actor-schedule" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text("{")  # config.yaml is only a record: a broken one does not matter
    assert main(["resume", str(tmp_path), "--total-steps", "7"]) == 0


def test_eval_prints_return_length_and_video(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path), "--episodes", "2", "--video", "--seed", "4"]) == 0
    of_the_run: dict[str, Any] = {"env": None, "env_kwargs": None, "env_wrapper": None, "max_episode_steps": None}
    given = {"episodes": 2, "checkpoint": "latest", "seed": 4, "video": True}
    assert calls.made == [("evaluate", tmp_path, given | of_the_run)]
    assert (
        capsys.readouterr().out
        == "return: 2.00 (std 1.00) over 2 episodes\nlength: 15.0\nsuccess: 0.50\nvideo: v.gif\n"
    )


def test_eval_accepts_another_environment(calls: Calls, tmp_path: Path) -> None:
    line = "--env Pendulum-v1 --env-kwargs g=9.81 --env-wrapper a:b --max-episode-steps 50 --checkpoint best --seed 3"
    assert main(["eval", str(tmp_path), *line.split()]) == 0
    other = {"env": "Pendulum-v1", "env_kwargs": {"g": 9.81}, "env_wrapper": "a:b", "max_episode_steps": 50}
    given = {"episodes": 20, "checkpoint": "best", "seed": 3, "video": False}
    assert calls.made == [("evaluate", tmp_path, given | other)]
    assert main(["eval", str(tmp_path), "--env-kwargs", "none"]) == 0
    assert calls.made[1][2]["env_kwargs"] == {}


def test_play_passes_its_flags_and_prints_what_is_reported(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", str(tmp_path), "--episodes", "2", "--checkpoint", "best", "--seed", "4"]) == 0
    [(_, path, options)] = calls.made
    options.pop("report")("episode 1")
    assert (path, options) == (tmp_path, {"episodes": 2, "checkpoint": "best", "seed": 4})
    assert capsys.readouterr().out == "episode 1\n"


def test_digest_prints_the_digest_only(calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(tmp_path), "--checkpoint", "best"]) == 0
    assert calls.made == [("digest", tmp_path, "best", {})]
    assert capsys.readouterr().out == "ab12\n"


def test_check_env_prints_findings_and_fails_only_on_errors(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "X", "--steps", "7", "--env-kwargs", "g=1"]) == 0
    assert "no problems found in 7 steps" in capsys.readouterr().out
    [(_, env, options)] = calls.made
    assert (env, options["env_kwargs"], options["steps"], options["seed"]) == ("X", {"g": 1}, 7, 0)
    warning = SimpleNamespace(severity="warning", what="no limit", remedy="set --max-episode-steps")
    calls.findings = (warning,)
    assert main(["check-env", "X"]) == 0
    assert capsys.readouterr().out == "warning: no limit; set --max-episode-steps\n"
    calls.findings = (warning, SimpleNamespace(severity="error", what="NaN in step 3", remedy=""))
    assert main(["check-env", "X"]) == 1
    assert capsys.readouterr().out.endswith("error: NaN in step 3\n")


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (CheckpointError("broken\n\n  in two lines"), 1, ["broken in two lines"]),
        (UsageError("capacity=1 is wrong"), 2, ["capacity=1 is wrong"]),
        (ZeroDivisionError("by zero"), 1, ["ZeroDivisionError: by zero", "--debug"]),
        (KeyboardInterrupt(), 1, ["interrupted"]),
    ],
)
def test_a_failure_is_one_paragraph_and_a_traceback_only_with_debug(
    raised: BaseException, code: int, words: list[str], calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.raising = raised
    assert main(["train", "sac", "--env", "X"]) == code
    error = capsys.readouterr().err
    assert error.startswith("offbeat: error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    for word in words:
        assert word in error
    for line in (["--debug", "train", "sac", "--env", "X"], ["train", "sac", "--debug", "--env", "X"]):
        assert main(line) == code
        error = capsys.readouterr().err
        assert "Traceback" in error
        assert error.splitlines()[-1].startswith("offbeat: error: ")


@pytest.mark.parametrize(
    "line",
    ["--help", "train sac --help", "train sac --env X --gama 1", "train sac --env X --gamma 7", "resume nope"],
)
def test_help_and_usage_errors_import_no_heavy_library(line: str) -> None:
    script = (
        "import sys, offbeat, offbeat.cli\n"
        f"code = offbeat.cli.main({line.split()!r})\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])\n"
        "sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == (0 if "help" in line else 2), result.stderr
    assert result.stdout.splitlines()[-1] == "heavy: []"


def piped(line: str, lines: int, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard output is closed after `lines` lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "offbeat", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert process.stdout is not None
    for _ in range(lines):
        assert process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=patience.SECONDS)
    return process.returncode, errors


def test_training_continues_when_its_output_pipe_is_closed(tmp_path: Path) -> None:
    small = "--total-steps 120 --warmup-steps 50 --batch-size 8 --hidden 8 --log-every 20 --eval-episodes 1 --threads 1"
    line = f"train sac --env Pendulum-v1 --max-episode-steps 20 {small} --logger none --out {tmp_path} --name run"
    assert piped(line, lines=1) == (0, "")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"]) == ("finished", 120)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("line", "code"), [("--version", 0), ("resume --help", 0), ("trian", 2)])
def test_a_closed_output_pipe_does_not_change_the_exit_code(line: str, code: int, unbuffered: str) -> None:
    returned, errors = piped(line, lines=0, PYTHONUNBUFFERED=unbuffered)
    assert returned == code
    assert errors == "" or errors.startswith("offbeat: error: ")
    assert errors.count("\n") <= 1


def test_the_module_is_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "offbeat", "trian"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "did you mean train?" in result.stderr
