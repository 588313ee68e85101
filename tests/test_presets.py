"""Presets: every one builds, the right one is picked, and everything that a user says wins over it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat import presets
from offbeat.algorithms.configs import PPO, SAC, Config, Fixed, Learned
from offbeat.algorithms.registry import ALGORITHMS
from offbeat.cli import main
from offbeat.errors import UsageError
from offbeat.settings import flat_values, flatten, make_config, make_learner_config, read, train_settings, write_yaml
from offbeat.training_commands import read_train
from offbeat.yamltext import parse_yaml

GAMMA = make_learner_config("sac").returns.gamma
FOLDER = Path(presets.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
ZOO = [
    pytest.param(file.stem, name, id=f"{file.stem}-{name}")
    for file in sorted(FOLDER.glob("*.yaml"))
    for name in presets.presets_of(file.stem)
]
SMALL: dict[str, Any] = {
    **{"total_steps": 120, "warmup_steps": 50, "random_steps": 50, "batch_size": 8, "hidden": (8,)},
    **{"max_episode_steps": 20, "eval_episodes": 1, "log_every": 60, "threads": 1, "logger": ()},
}


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """A zoo of the test's own, the same for every algorithm."""
    zoo: dict[str, dict[str, Any]] = {
        "Own-v0": {"gamma": 0.9, "total_steps": 500, "temperature": "fixed", "temperature_value": 0.3},
        "Own-v1": {"gamma": 0.8, "env_kwargs": {"continuous": True}},
    }
    monkeypatch.setattr(presets, "presets_of", lambda algorithm: zoo)
    return zoo


def from_flags(line: str) -> Config:
    return read_train("sac", line.split())


def from_python(env: str, **settings: Any) -> Config:
    return presets.assemble("sac", read(train_settings("sac"), {**settings, "env": env}))


def values_of(config: Config) -> dict[str, Any]:
    return flat_values(config.run) | flat_values(config.learner)


@pytest.mark.parametrize(("algorithm", "name"), ZOO)
def test_every_preset_builds_and_all_of_it_arrives(algorithm: str, name: str) -> None:
    if algorithm not in ALGORITHMS:
        pytest.skip(f"there is no {algorithm} yet")
    config = read_train(algorithm, ["--env", name])
    assert config.run.start.preset == name
    preset = make_config(algorithm, presets.presets_of(algorithm)[name])
    for key, value in values_of(preset).items():
        assert key in ("env", "preset") or values_of(config)[key] == value
    assert config.run.length.total_steps > 2 * config.run.pace.warmup_steps


@pytest.mark.parametrize(("algorithm", "name"), ZOO)
def test_a_preset_says_what_works_and_not_whose_run_it_is(algorithm: str, name: str) -> None:
    personal = {"env", "preset", "seed", "out", "name", "quiet", "logger", "device", "threads", "env_wrapper"}
    assert not personal & set(presets.presets_of(algorithm)[name])
    assert "total_steps" in presets.presets_of(algorithm)[name]


@pytest.mark.parametrize(("algorithm", "name"), ZOO)
def test_every_preset_is_for_an_environment_that_exists(algorithm: str, name: str) -> None:
    import gymnasium

    assert name in gymnasium.registry


@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_every_preset_makes_many_rollouts_of_enough_rows(algorithm: str) -> None:
    for name in presets.presets_of(algorithm):
        config = read_train(algorithm, ["--env", name])
        run, learner = config.run, config.learner
        assert isinstance(learner, PPO)
        rows = learner.rollouts.rollout_steps * run.environment.num_envs // max(1, run.collection.collectors)
        assert rows % learner.rollouts.minibatches == 0, name
        assert rows // learner.rollouts.minibatches >= 16, name
        assert run.length.total_steps >= 20 * rows * max(1, run.collection.collectors), name


def test_every_algorithm_has_presets() -> None:
    assert [name for name in ALGORITHMS if not presets.presets_of(name)] == []
    assert presets.presets_of("nothing") == {}


def test_pendulum_for_sac_is_the_defaults_with_the_usual_budget() -> None:
    config = from_flags("--env Pendulum-v1")
    assert config.learner == make_learner_config("sac")
    assert config.run == make_config("sac", {"env": "Pendulum-v1", "total_steps": 10_000, "preset": "Pendulum-v1"}).run


def test_flags_win_over_the_file_over_the_preset_over_the_defaults(zoo: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: Own-v0\ngamma: 0.7\ntau: 0.5\n")
    learner = from_flags("--env Own-v0").learner
    assert isinstance(learner, SAC)
    assert (learner.returns.gamma, learner.target.tau, learner.temperature) == (0.9, 0.005, Fixed(0.3))
    assert from_flags(f"--config {file}").learner.returns.gamma == 0.7
    assert from_flags(f"--config {file}").run.length.total_steps == 500
    assert from_flags(f"--config {file} --gamma 0.6").learner.returns.gamma == 0.6
    assert from_flags(f"--config {file} --env Own-v1").run.start.preset == "Own-v1"
    assert from_flags("--env Own-v0").learner == from_python("Own-v0").learner
    assert from_python("Own-v0", gamma=0.5).learner.returns.gamma == 0.5


def test_a_value_that_equals_the_default_wins_over_the_preset_too(zoo: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"env: Own-v0\ngamma: {GAMMA}\ntemperature: learned\n")
    for config in (
        from_flags(f"--config {file}"),
        from_flags(f"--env Own-v0 --gamma {GAMMA} --temperature learned"),
        from_python("Own-v0", gamma=GAMMA, temperature=Learned()),
    ):
        assert config.learner == make_learner_config("sac")


@pytest.mark.parametrize("env", ["Own-v2", "own-v0", "module:Own-v0", "module:make"])
def test_only_the_exact_id_has_a_preset(env: str, zoo: dict[str, Any]) -> None:
    assert from_flags(f"--env {env}") == make_config("sac", {"env": env, "preset": None})


def test_none_switches_the_preset_off(zoo: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("preset: none\n")
    plain = make_config("sac", {"env": "Own-v0", "preset": None})
    assert from_flags("--env Own-v0 --preset none") == plain
    assert from_flags(f"--env Own-v0 --config {tmp_path / 'a.yaml'}") == plain
    assert from_python("Own-v0", preset=None) == from_python("Own-v0", preset="none") == plain
    assert from_flags(f"--env Own-v0 --config {tmp_path / 'a.yaml'} --preset auto").learner.returns.gamma == 0.9


def test_a_preset_can_be_borrowed_without_the_arguments_of_its_environment(zoo: dict[str, Any]) -> None:
    assert from_flags("--env Own-v1").run.environment.env_kwargs == {"continuous": True}
    config = from_flags("--env module:make --preset Own-v1")
    assert (config.run.start.preset, config.learner.returns.gamma, config.run.environment.env_kwargs) == (
        "Own-v1",
        0.8,
        {},
    )


def test_arguments_of_the_environment_are_laid_over_each_other_key_by_key(zoo: dict[str, Any], tmp_path: Path) -> None:
    zoo["Own-v1"]["env_kwargs"] = {"continuous": True, "gravity": -10}
    file = tmp_path / "a.yaml"
    file.write_text("env: Own-v1\nenv_kwargs: {gravity: -8, wind: 5}\n")
    for config, kwargs in (
        (from_flags("--env Own-v1 --env-kwargs size=3"), {"continuous": True, "gravity": -10, "size": 3}),
        (from_python("Own-v1", env_kwargs={"gravity": -1}), {"continuous": True, "gravity": -1}),
        (from_flags(f"--config {file}"), {"continuous": True, "gravity": -8, "wind": 5}),
        (from_flags(f"--config {file} --env-kwargs wind=6"), {"continuous": True, "gravity": -8, "wind": 6}),
        (from_flags(f"--config {file} --env-kwargs none"), {}),
        (from_python("Own-v1", env_kwargs={}), {}),
    ):
        assert config.run.environment.env_kwargs == kwargs
    told = [str(presets.sentence(from_flags(f"--env Own-v1 --env-kwargs {each}"))) for each in ("a=1", "gravity=-1")]
    assert "env_kwargs continuous=true gravity=-10" in told[0]
    assert "env_kwargs" not in told[1]


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_a_batch_of_transitions_is_not_taken_for_one_of_sequences(algorithm: str) -> None:
    settings = train_settings(algorithm)
    known = {"env": "HalfCheetah-v5", "total_steps": 1_000_000}
    plain, recurrent, own = (
        presets.assemble(algorithm, read(settings, known | more))
        for more in ({}, {"network": "gru"}, {"network": "lstm", "batch_size": 64})
    )
    assert [values_of(each)["batch_size"] for each in (plain, recurrent, own)] == [256, 32, 64]
    assert "batch_size" not in presets.kept(recurrent)


def test_the_lander_that_sac_needs_stays_continuous() -> None:
    config = from_flags("--env LunarLander-v3 --env-kwargs gravity=-5.0")
    assert config.run.environment.env_kwargs == {"continuous": True, "gravity": -5.0}


@pytest.mark.parametrize("algorithm", [each for each in ALGORITHMS if "LunarLander-v3" in presets.presets_of(each)])
def test_a_lander_has_actions_that_its_algorithm_takes(algorithm: str) -> None:
    run = read_train(algorithm, ["--env", "LunarLander-v3"]).run
    agent = offbeat.Agent(algorithm, "LunarLander-v3", env_kwargs=run.environment.env_kwargs)
    assert np.shape(agent.act(np.zeros(8, np.float32))) == agent.spec.action_shape


@pytest.mark.parametrize("name", ["Pendulum-1", "pendulum-v1", "Pendlum-v1"])
def test_a_misspelt_preset_is_refused_with_a_suggestion(name: str) -> None:
    with pytest.raises(UsageError, match=f"--preset='{name}' is not a preset of sac.*did you mean Pendulum-v1"):
        from_flags(f"--env module:make --preset {name}")
    with pytest.raises(UsageError, match=f"^preset='{name}'"):
        from_python("module:make", preset=name)


def test_the_record_of_a_run_repeats_it_whatever_the_presets_say_later(zoo: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config = from_flags("--env Own-v0 --tau 0.5")
    text = write_yaml(config, {"offbeat": "0"})
    newer = "\n".join(line for line in text.splitlines() if not line.startswith("n_step"))  # before there was n_step
    zoo["Own-v0"] = {"gamma": 0.1, "tau": 0.1, "critics": 5, "n_step": 7, "temperature": "learned"}
    for content in (text, newer):
        file.write_text(content)
        assert from_flags(f"--config {file}") == config
        zoo.clear()
        assert from_flags(f"--config {file}") == config
    assert from_flags(f"--config {file} --seed 4").run.start.preset == "Own-v0"
    assert from_flags(f"--config {file} --preset none").run.start.preset is None
    with pytest.raises(UsageError, match=r"--preset=Own-v1 has no effect with --config .*config\.yaml"):
        from_flags(f"--config {file} --preset Own-v1")


def test_the_sentence_names_what_holds_of_the_preset(zoo: dict[str, Any]) -> None:
    assert presets.sentence(from_flags("--env Own-v0 --total-steps 7")) == (
        "preset: sac on Own-v0 (gamma 0.9, temperature fixed, temperature_value 0.3); flags override"
    )
    assert presets.sentence(from_python("Own-v1", gamma=0.1, env_kwargs={})) is None
    zoo["Own-v2"] = {"gamma": GAMMA, "tau": 0.5}
    assert presets.sentence(from_python("Own-v2")) == "preset: sac on Own-v2 (tau 0.5); flags override"
    assert presets.sentence(from_python("Own-v2", tau=0.1)) is None
    assert presets.sentence(from_flags("--env X")) is None
    assert presets.sentence(from_flags("--env Own-v0 --preset none")) is None


def test_a_run_says_its_preset_and_resume_asks_for_none(
    zoo: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo["Pendulum-v1"] = {"gamma": 0.5, "n_step": 2}
    run = offbeat.train("sac", "Pendulum-v1", out=tmp_path, name="run", **SMALL)
    said = "preset: sac on Pendulum-v1 (gamma 0.5, n_step 2); flags override"
    assert said in capsys.readouterr().out.splitlines()
    assert said in (run.path / "log.txt").read_text()
    record = parse_yaml((run.path / "config.yaml").read_text())
    assert (record["preset"], record["gamma"], record["n_step"]) == ("Pendulum-v1", 0.5, 2)
    zoo["Pendulum-v1"] = {"gamma": 0.1, "tau": 0.5}
    offbeat.resume(run.path, total_steps=140)
    assert "preset:" not in capsys.readouterr().out
    assert parse_yaml((run.path / "config.yaml").read_text()) == {**record, "total_steps": 140}


def test_too_few_steps_are_refused_with_both_ways_out_and_the_preset_where_it_is_the_cause(tmp_path: Path) -> None:
    both = r"total_steps=100 with warmup_steps=200 .* use total_steps >= 201, or fewer warmup_steps$"
    with pytest.raises(UsageError, match=both):
        offbeat.train("sac", "Pendulum-v1", total_steps=100, warmup_steps=200, out=tmp_path)
    rollout = r"total_steps=10 does not make one rollout, rollout_steps=32 of 8 environment.* use total_steps >= 256, "
    with pytest.raises(UsageError, match=rollout + r"or fewer rollout_steps; preset: ppo on CartPole-v1"):
        offbeat.train("ppo", "CartPole-v1", total_steps=10, out=tmp_path)
    with pytest.raises(UsageError, match=r"or fewer rollout_steps$"):
        offbeat.train("ppo", "CartPole-v1", total_steps=10, rollout_steps=64, out=tmp_path)


def test_random_and_warmup_steps_that_nobody_set_are_at_most_a_quarter_of_a_run(zoo: dict[str, Any]) -> None:
    zoo["Own-v2"] = {"warmup_steps": 5_000}
    cases = {
        "--env X": (1_000, 1_000),
        "--env X --total-steps 4000": (1_000, 1_000),
        "--env X --total-steps 500": (125, 125),
        "--env X --total-steps 1": (1, 1),
        "--env X --total-steps 500 --warmup-steps 400": (125, 400),
        "--env X --total-steps 500 --random-steps 1000": (1_000, 125),
        "--env X --total-steps 500 --capacity 200": (125, 125),
        "--env Own-v2 --total-steps 8000": (1_000, 2_000),
    }
    for line, expected in cases.items():
        run = from_flags(line).run
        assert (run.pace.random_steps, run.pace.warmup_steps) == expected, line
    assert presets.short_run(from_flags("--env X")) is None
    said = "short run: random_steps 125, warmup_steps 125 (normally random_steps 1000, warmup_steps 1000)"
    assert presets.short_run(from_flags("--env X --total-steps 500")) == said
    said = "short run: warmup_steps 2000 (normally warmup_steps 5000)"
    assert presets.short_run(from_flags("--env Own-v2 --total-steps 8000")) == said
    assert presets.short_run(from_flags("--env X --total-steps 500 --random-steps 0 --warmup-steps 9")) is None
    assert presets.short_run(read_train("ppo", ["--env", "X", "--total-steps", "500"])) is None


def test_the_record_of_a_short_run_repeats_it(tmp_path: Path) -> None:
    config, file = from_flags("--env X --total-steps 500"), tmp_path / "config.yaml"
    file.write_text(write_yaml(config, {"offbeat": "0"}))
    assert from_flags(f"--config {file}") == config


def test_help_shows_the_values_of_the_preset_and_where_it_comes_in(
    zoo: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("env: Own-v0\n")
    for line, gamma in {"": "0.99", "--env Own-v0": "0.9", f"--config {file}": "0.9", "--preset Own-v1": "0.8"}.items():
        assert main(["train", "sac", *line.split(), "--help"]) == 0
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "then the --config file, then the preset of the environment" in text
        assert f"Discount factor per step. Must be at least 0, at most 1. (default: {gamma})" in text


def test_a_config_that_was_flattened_keeps_the_name(zoo: dict[str, Any]) -> None:
    config = from_flags("--env Own-v0")
    assert make_config("sac", flatten(config)) == config


def test_the_docs_example_of_droq_trains_as_its_authors_do() -> None:
    """Hiraoka et al. 2022 on Hopper: REDQ's rates, ratio and target entropy; two critics, dropout 0.01, layer norm."""
    line = next(line for line in (DOCS / "algorithms.md").read_text().splitlines() if "--critic-dropout" in line)
    _, command, algorithm, *flags = line.split()
    assert command == "train"
    values = values_of(read_train(algorithm, flags))
    wanted = {
        **{"critics": 2, "target_subset": 2, "actor_value": "mean", "critic_dropout": 0.01, "critic_layer_norm": True},
        **{"updates_per_step": 20, "actor_every": 20, "temperature_target_entropy": -1.0, "random_steps": 5_000},
        **{f"{group}_learning_rate": 3e-4 for group in ("actor", "critic", "temperature")},
    }
    assert {key: values[key] for key in wanted} == wanted


def test_the_page_of_presets_is_current() -> None:
    command = [sys.executable, "-m", "offbeat.presets", "--markdown"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (DOCS / "presets.md").read_text() == made, "run python -m offbeat.presets --markdown > docs/presets.md"
    assert subprocess.run(command[:-1], capture_output=True, check=False).returncode == 1
