"""Names that other libraries use are answered with ours, wherever they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import offbeat
from offbeat import foreign_names, presets
from offbeat.algorithms.configs import Config, Fixed
from offbeat.algorithms.registry import ALGORITHMS
from offbeat.cli import main
from offbeat.errors import UsageError
from offbeat.foreign_names import FOREIGN
from offbeat.settings import flatten, make_config, make_learner_config, read, train_settings
from offbeat.training_commands import read_train

NAMES = {algorithm: {each.name for each in train_settings(algorithm)} for algorithm in ALGORITHMS}


def test_every_target_is_a_setting_of_an_algorithm_and_every_entry_has_an_answer() -> None:
    known = set.union(*NAMES.values())
    for name, entry in FOREIGN.items():
        assert set(entry.ours) <= known, name
        assert entry.ours or entry.why, name


def test_no_entry_is_shadowed_by_a_setting_that_every_algorithm_has() -> None:
    assert not set.intersection(*NAMES.values()) & set(FOREIGN)


@pytest.mark.parametrize(
    ("algorithm", "name", "words"),
    [
        ("sac", "buffer_size", "use capacity"),
        ("sac", "learning_starts", "use warmup_steps (steps before the first update"),
        ("sac", "gradient_steps", "use updates_per_step (updates per environment step: gradient_steps / "),
        ("sac", "train_freq", "use updates_per_step"),
        ("sac", "ent_coef", "use temperature (fixed with temperature_value"),
        ("ppo", "ent_coef", "use entropy_coefficient"),
        ("sac", "n_steps", "use n_step"),
        ("ppo", "n_steps", "use rollout_steps"),
        ("ppo", "batch_size", "use minibatches (a number of parts"),
        ("sac", "clip_range", "its name here is clip, which this algorithm does not have"),
        ("ppo", "buffer_size", "its name here is capacity, which this algorithm does not have"),
        ("td3", "action_noise", "use exploration (gaussian or ornstein_uhlenbeck"),
        ("dqn", "exploration_fraction", "use exploration_steps (in environment steps"),
        ("sac", "policy_kwargs", "use hidden"),
        ("sac", "use_sde", "there is no state-dependent exploration"),
        ("dqn", "n_envs", "use num_envs"),
        ("ppo", "lr", "use learning_rate"),
        ("sac", "learning_start", "use warmup_steps"),  # misspelt, and foreign
        ("sac", "callback", "callbacks=[...]"),
        ("sac", "progress_bar", "a run always shows its progress"),
        ("dqn", "optimizer_kwargs", "use adam_epsilon (for eps"),
        ("sac", "actor_hidden", "use hidden (critic_hidden where"),
        ("sac", "env_name", "use env"),
        ("ppo", "ortho_init", "use actor (your own network"),
        ("sac", "gae_lambda", "only ppo, appo have this setting: leave it out"),
        ("sac", "target_kl", "only ppo, appo have this setting: leave it out"),
        ("sac", "gama", "did you mean gamma?"),
        ("sac", "actor_learnin_rate", "did you mean actor_learning_rate?"),
    ],
)
def test_a_foreign_name_is_answered_with_ours(algorithm: str, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as from_python:
        make_config(algorithm, {name: 1})
    file = tmp_path / "a.yaml"
    file.write_text(f"env: X\n{name}: 1\n")
    with pytest.raises(UsageError) as from_file:
        read_train(algorithm, ["--config", str(file)])
    for error in (from_python, from_file):
        assert words in str(error.value)
        assert len(str(error.value)) < 400
    flag = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"there is no flag {flag}") as from_flags:
        read_train(algorithm, ["--env", "X", flag, "1"])
    if words.startswith("use "):
        assert f"use --{words.split()[1].replace('_', '-')}" in str(from_flags.value)


def test_commands_answer_with_flags_that_they_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path), "--n-eval-episodes", "3"]) == 2
    assert "there is no flag --n-eval-episodes for offbeat eval; did you mean --episodes?" in capsys.readouterr().err


def test_algorithms_that_we_lack_are_answered_with_the_nearest_that_we_have() -> None:
    for name, nearest in foreign_names.ALGORITHMS.items():
        assert name not in ALGORITHMS
        assert nearest.split(",")[0] in ALGORITHMS
        with pytest.raises(UsageError, match=f"there is no algorithm '{name.upper()}'.*; the nearest is {nearest}"):
            make_config(name.upper(), {})


def test_agents_of_ones_own_loop_answer_too() -> None:
    with pytest.raises(UsageError, match="use capacity"):
        offbeat.Agent("sac", "Pendulum-v1", buffer_size=10)


def from_python(algorithm: str, **settings: Any) -> Config:
    return presets.assemble(algorithm, read(train_settings(algorithm), {"env": "X", **settings}))


def rates(config: Config) -> list[float]:
    return [value for name, value in flatten(config).items() if name.endswith("learning_rate")]


@pytest.mark.parametrize(("algorithm", "groups"), [("sac", 3), ("redq", 3), ("td3", 2), ("dqn", 1), ("ppo", 1)])
def test_a_plain_learning_rate_sets_all_groups(algorithm: str, groups: int) -> None:
    config = from_python(algorithm, learning_rate=0.5)
    assert rates(config) == [0.5] * groups
    assert read_train(algorithm, ["--env", "X", "--learning-rate", "0.5"]) == config
    assert make_config(algorithm, flatten(config)) == config  # what is recorded is the rate of each group


def test_a_rate_by_its_own_name_wins_and_a_higher_layer_wins_over_both(tmp_path: Path) -> None:
    config = from_python("sac", learning_rate=0.5, critic_learning_rate=0.25)
    assert rates(config) == [0.5, 0.25, 0.5]
    file = tmp_path / "a.yaml"
    file.write_text("env: X\nactor_learning_rate: 0.1\nlearning_rate: 0.2\n")
    assert rates(read_train("sac", ["--config", str(file)])) == [0.1, 0.2, 0.2]
    assert rates(read_train("sac", ["--config", str(file), "--learning-rate", "0.3"])) == [0.3] * 3
    assert rates(read_train("sac", ["--config", str(file), "--critic-learning-rate", "0.4"])) == [0.1, 0.4, 0.2]


def test_a_fixed_temperature_has_no_rate_to_set(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: X\ntemperature: fixed\n")
    for config in (
        read_train("sac", ["--config", str(file), "--learning-rate", "0.5"]),
        from_python("sac", temperature=Fixed(), learning_rate=0.5),
    ):
        assert rates(config) == [0.5, 0.5, make_learner_config("sac").temperature_learning_rate]


def test_the_page_of_names_is_current() -> None:
    page = Path(__file__).parents[1] / "docs" / "coming_from.md"
    assert page.read_text() == foreign_names.markdown(), (
        "run python -m offbeat.foreign_names --markdown > docs/coming_from.md"
    )
