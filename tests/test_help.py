"""What `--help` shows: commands, flags, ranges, and the defaults that would really hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offbeat.algorithms.registry import ALGORITHMS
from offbeat.cli import COMMANDS, main
from offbeat.flags import WORDS, flag
from offbeat.help_groups import TITLES
from offbeat.settings import make_config, train_settings, write_yaml


def help_of(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The help in one line, without its frame."""
    assert main([*line.split(), "--help"]) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_help_lists_the_commands_and_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in ("train ALGO", *COMMANDS):
        assert name in text
    assert main(["train", "--help"]) == 0
    assert "sac" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "offbeat 0.1.0\n"


@pytest.mark.parametrize("asked", ["--help", "-h"])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_word_and_flags(name: str, asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, asked]) == 0
    text = capsys.readouterr().out
    assert f"offbeat {name}" in text
    assert COMMANDS[name].argument in text
    assert WORDS[COMMANDS[name].argument] in text
    assert "--debug" in text


def test_help_of_train_shows_ranges_kinds_and_the_defaults_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("gamma: 0.875\nhidden: [17, 19]\n")
    for line in ("train sac", f"train sac --env --config {file}"):
        text = help_of(line, capsys)
        for each in train_settings("sac"):
            assert f"{flag(each.name)} " in text.replace(",", " ")
        assert "Must be at least 0, at most 1." in text
        assert "Only with --temperature fixed." in text
        assert ("(default: 0.875)" in text, "(default: 17 19)" in text) == ("--config" in line,) * 2


@pytest.mark.parametrize("line", ["td3", "ddpg", "td3 --exploration ornstein_uhlenbeck"])
def test_help_shows_the_default_of_each_kind_where_they_differ(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(f"train {line}", capsys)
    assert "ornstein_uhlenbeck. (default: 0.1 for gaussian, 0.2 for ornstein_uhlenbeck) --exploration-spread" in text
    assert "ornstein_uhlenbeck. (default: 1.0) --exploration-pull" in text


def test_help_shows_the_arguments_of_file_and_preset_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env_kwargs: {gravity: -5}\n")
    assert "(default: continuous=true gravity=-5)" in help_of(f"train sac --env LunarLander-v3 --config {file}", capsys)
    assert "(default: gravity=-5)" in help_of(f"train sac --env Pendulum-v1 --config {file}", capsys)


@pytest.mark.parametrize(("algorithm", "example"), [("sac", "HalfCheetah-v5"), ("dqn", "CartPole-v1")])
def test_help_of_train_begins_with_examples_and_has_groups(
    algorithm: str, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", algorithm, "--help"]) == 0
    text = capsys.readouterr().out
    beginning = text.partition("options")[0].splitlines()
    assert sum(line.startswith(f"offbeat train {algorithm} --env ") for line in beginning) == 3
    assert f"offbeat train {algorithm} --env {example}" in beginning
    groups = ("run", "environment", algorithm, "networks", "exploration", "collectors", "evaluation", "logging")
    for title in groups:
        assert re.search(rf"(^|\W){title} options", text), title


def test_every_title_of_a_setting_is_a_section_of_the_help() -> None:
    found = {each.title for algorithm in ALGORITHMS for each in train_settings(algorithm)}
    assert found == {None, "environment", *TITLES}


def test_help_of_resume_shows_the_values_of_the_run_and_only_what_may_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(
        write_yaml(make_config("sac", {"env": "X", "gamma": 0.875}), {"offbeat": "0"})
    )
    text = help_of(f"resume {tmp_path}", capsys)
    assert "(default: 0.875)" in text
    assert "--learning-rate" in text
    assert "--hidden" not in text


def test_help_of_resume_says_that_the_number_is_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not an addition" in help_of("resume", capsys)


def test_the_best_checkpoint_is_offered_where_no_replay_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    offered = "latest, best, or its name"
    assert [offered in help_of(command, capsys) for command in ("eval", "play", "digest")] == [True] * 3
    assert offered not in help_of("resume", capsys)
