"""Settings: every key, from everywhere, checked in one place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from each_setting import changed, every_setting, named, needed
from offbeat import flat, settings, settings_page
from offbeat.algorithms.configs import Config, Fixed, Learned, Run
from offbeat.algorithms.registry import ALGORITHMS, Algorithm
from offbeat.coercion import lost
from offbeat.errors import UsageError
from offbeat.ranges import setting
from offbeat.settings import (
    RATE,
    all_values,
    flat_values,
    flatten,
    make,
    make_config,
    make_learner_config,
    read_yaml,
    train_settings,
    with_changes,
    write_yaml,
)

VERSIONS = {"offbeat": "0.1.0", "python": "3.11"}


def shape_reward(reward: float, step: int, total_steps: int) -> float:
    return reward * step / total_steps


def numbers() -> list[tuple[str, settings.Setting]]:
    return [
        (algorithm, each)
        for algorithm, each in every_setting()
        if {each.hint, *getattr(each.hint, "__args__", ())} & {int, float}
    ]


def test_the_defaults_are_those_of_the_dataclasses() -> None:
    assert make_config("sac", {}) == Config("sac", Run(), make_learner_config("sac"))


def test_flat_keys_reach_the_run_and_the_algorithm() -> None:
    config = make_config("sac", {"env": "Pendulum-v1", "total_steps": 20_000, "batch_size": 64, "hidden": [32, 16]})
    assert config == Config(
        "sac",
        make(Run, {"env": "Pendulum-v1", "total_steps": 20_000}),
        make_learner_config("sac", batch_size=64, hidden=(32, 16)),
    )


@pytest.mark.parametrize(
    "temperature",
    [
        {"temperature": Fixed(0.1)},
        {"temperature": {"kind": "fixed", "value": 0.1}},
        {"temperature": "fixed", "temperature_value": 0.1},
        {"temperature_value": "1e-1", "temperature": "fixed"},
    ],
)
def test_a_union_can_be_an_instance_a_mapping_or_flat_keys(temperature: dict[str, Any]) -> None:
    assert make_config("sac", temperature).learner.temperature == Fixed(0.1)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("gamma", "9e-1", 0.9),
        ("gamma", 1, 1.0),
        ("total_steps", "1e6", 1_000_000),
        ("total_steps", 1e6, 1_000_000),
        ("total_steps", "20_000", 20_000),
        ("total_steps", np.int64(7), 7),
        ("total_steps", 2**62 + 1, 2**62 + 1),
        ("tau", np.float32(0.5), 0.5),
        ("hidden", "64,32", (64, 32)),
        ("hidden", "none", ()),
        ("critic_hidden", "None", None),
        ("critic_hidden", [8], (8,)),
        ("max_grad_norm", "none", None),
        ("logger", "tensorboard", ("tensorboard",)),
        ("logger", "tensorboard,wandb", ("tensorboard", "wandb")),
        ("logger", "none", ()),
        ("out", Path("a") / "b", "a/b"),
        ("env_kwargs", {"range": (0.2, np.float64(1.0)), "mask": np.arange(2)}, {"range": [0.2, 1.0], "mask": [0, 1]}),
    ],
)
def test_what_yaml_numpy_and_flags_give_becomes_the_type(key: str, value: Any, expected: Any) -> None:
    config = make_config("sac", {key: value})
    found = all_values(config)[key]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"batchsize": 1}, ["'batchsize'", "did you mean batch_size?"]),
        ({"total-steps": 1}, ["'total-steps'", "did you mean total_steps?"]),
        ({"xyzzy": 1}, ["'xyzzy'", "there is env, env_kwargs"]),
        ({3: 1}, ["3"]),
        ({"total_steps": "abc"}, ["total_steps='abc'", "a whole number"]),
        ({"total_steps": 1.5}, ["total_steps=1.5", "a whole number"]),
        ({"total_steps": True}, ["total_steps=True", "a whole number"]),
        ({"total_steps": 10**5000}, ["total_steps", "too long to show"]),
        ({"gamma": None}, ["gamma=None", "a number"]),
        ({"gamma": math.nan}, ["gamma=nan", "finite"]),
        ({"log_std_min": -math.inf}, ["log_std_min=-inf", "finite"]),
        ({"gamma": 2}, ["gamma=2.0", "at most 1"]),
        ({"hidden": [64, 0]}, ["hidden=(64, 0)", "at least 1"]),
        ({"hidden": 64}, ["hidden=64", "a list, each a whole number"]),
        ({"quiet": "yes"}, ["quiet='yes'", "true or false"]),
        ({"activation": "rleu"}, ["activation='rleu'", "one of relu, tanh", "did you mean relu?"]),
        ({"logger": ["wandbe"]}, ["logger=['wandbe']", "tensorboard", "wandb"]),
        ({"stop_return": 5, "eval_every": 0}, ["stop_return=5", "eval_every=0"]),
        ({"env": 7}, ["env=7", "text"]),
        ({"env_kwargs": {1: 2}}, ["env_kwargs={1: 2}", "mapping"]),
        ({"actor": 5}, ["actor=5", "module:callable", "none"]),
        ({"temperature": "auto"}, ["temperature='auto'", "learned, fixed"]),
        ({"temperature": {"kind": "fixd"}}, ["temperature='fixd'", "did you mean fixed?"]),
        ({"temperature": {"kind": "fixed", "valu": 1}}, ["temperature", "'valu'", "did you mean value?"]),
        ({"temperature": {"kind": "fixed", "value": -1}}, ["temperature_value=-1.0", "at least 0"]),
        ({"temperature": 0.2}, ["temperature=0.2", "learned, fixed"]),
        ({"temperature": None}, ["temperature='none'", "learned, fixed"]),
        ({"temperature_value": 0.1}, ["temperature_value needs temperature fixed", "temperature is learned"]),
        ({"temperature": {"kind": "fixed", "initial": 1}}, ["temperature_initial needs temperature learned"]),
        ({"warmup_steps": 10, "capacity": 5}, ["warmup_steps=10", "capacity=5"]),
        ({"actor_schedule": "linaer"}, ["actor_schedule='linaer'", "did you mean linear?"]),
        ({"critic_schedule": "lineer"}, ["critic_schedule='lineer'", "did you mean linear?"]),
        ({"critic_schedule": "xyz"}, ["critic_schedule='xyz' is none of constant, linear, cosine, nor"]),
        ({"algorithm": "td3"}, ["algorithm='td3'", "sac"]),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(mapping: dict[Any, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as refusal:
        make_config("sac", mapping)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("name", ["sca", "SAC", 3, None, ["sac"]])
def test_an_unknown_algorithm_is_refused_with_the_list(name: Any) -> None:
    with pytest.raises(UsageError, match=r"there is no algorithm .*there is sac"):
        make_config(name, {})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@hypothesis_settings(max_examples=500)
@given(
    of=st.sampled_from([(algorithm, each.name) for algorithm in ALGORITHMS for each in train_settings(algorithm)]),
    value=anything,
)
def test_any_value_is_taken_or_refused_with_its_key_named(of: tuple[str, str], value: Any) -> None:
    algorithm, key = of
    refusal = ""
    try:
        plain = flatten(config := make_config(algorithm, {key: value}))
    except UsageError as error:
        refusal = str(error)
    if refusal:
        assert key in refusal
    else:
        assert lost(list(plain.values())) or make_config(algorithm, plain) == config


ANY_NUMBER = {"initial_log_std", "log_std_min", "log_std_max", "stop_return", "temperature_target_entropy"}


@pytest.mark.parametrize(("algorithm", "each"), numbers(), ids=named)
def test_every_number_has_a_range_and_what_is_beyond_it_is_refused(algorithm: str, each: settings.Setting) -> None:
    assert bool(each.limits) != (each.name in ANY_NUMBER)
    for kind, limit in each.limits.items():
        value: Any = limit + {"at_least": -1, "above": 0, "at_most": 1, "below": 0}[kind]
        value = (value,) * len(each.default) if isinstance(each.default, tuple) else value
        with pytest.raises(UsageError, match=f"{each.name}=.* is (out of range|not a whole number)"):
            make_config(algorithm, {**needed(each), each.name: value})


@given(key=st.text() | st.integers() | st.none() | st.tuples(st.integers()), value=anything)
def test_any_unknown_key_is_refused_with_its_name(key: Any, value: Any) -> None:
    assume(key not in {each.name for each in train_settings("sac")})
    with pytest.raises(UsageError) as refusal:
        make_config("sac", {key: value})
    assert settings.shown(key) in str(refusal.value)


@pytest.mark.parametrize(("algorithm", "each"), every_setting(), ids=named)
def test_every_setting_has_help_and_survives_flatten_and_yaml(
    algorithm: str, each: settings.Setting, tmp_path: Path
) -> None:
    assert each.help.endswith(".")
    _, config = changed(algorithm, each)
    plain = flatten(config)
    assert make_config(algorithm, plain) == config
    assert make_config(algorithm, json.loads(json.dumps(plain))) == config
    file = tmp_path / "config.yaml"
    file.write_text(write_yaml(config, VERSIONS))
    assert make_config(algorithm, read_yaml(file)) == config


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_two_settings_share_a_flat_key(algorithm: str) -> None:
    names = [each.name for each in train_settings(algorithm)]
    assert len(names) == len(set(names))
    assert not {"algorithm", "versions", "config", "debug"} & set(names)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_default_of_each_kind_is_what_choosing_the_kind_gives(algorithm: str) -> None:
    for each in train_settings(algorithm):
        for kind, default in each.defaults.items():
            if kind == "own":  # it cannot be chosen without a callable
                continue
            assert flat_values(make_config(algorithm, {each.union: kind}).learner)[each.name] == default


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kinds_that_share_a_field_say_the_same_of_it(algorithm: str) -> None:
    for union in train_settings(algorithm):
        said: dict[str, Any] = {}
        for kind in filter(None, union.kinds.values()):
            for one in settings.settings_of(kind):
                meaning = one.hint, one.help, one.limits
                assert said.setdefault(one.name, meaning) == meaning


def test_mappings_are_laid_over_each_other_key_by_key_and_an_empty_one_empties() -> None:
    below = {"gamma": 0.9, "env_kwargs": {"g": 1, "h": {"a": 1, "b": 2}}}
    above = {"env_kwargs": {"h": {"a": 3}, "k": None}}
    assert settings.merge(below, above) == {"gamma": 0.9, "env_kwargs": {"g": 1, "h": {"a": 3}, "k": None}}
    assert settings.merge(below, {"env_kwargs": {}, "gamma": 0.8}) == {"gamma": 0.8, "env_kwargs": {}}
    assert below["env_kwargs"] == {"g": 1, "h": {"a": 1, "b": 2}}


def test_a_nameable_callable_becomes_its_name() -> None:
    config = make_config("sac", {"reward_shaping": shape_reward})
    assert config.run.environment.reward_shaping == f"{__name__}:shape_reward"
    assert (
        flatten(Config("sac", make(Run, {"reward_shaping": shape_reward}), make_learner_config("sac")))[
            "reward_shaping"
        ]
        == config.run.environment.reward_shaping
    )


def test_a_callable_without_a_name_has_to_be_given_again() -> None:
    halve = lambda reward, step, total_steps: reward / 2  # noqa: E731
    config = make_config("sac", {"reward_shaping": halve, "env_kwargs": {"rule": halve}})
    assert config.run.environment.reward_shaping is halve
    plain = flatten(config)
    assert "lambda" in plain["reward_shaping"]["callable"]
    for key in ("reward_shaping", "env_kwargs"):
        with pytest.raises(UsageError, match=f"{key} was <function .* give it again"):
            make_config("sac", {key: plain[key]})
    assert make_config("sac", {**plain, "reward_shaping": halve, "env_kwargs": {"rule": halve}}) == config


def test_changes_keep_the_rest() -> None:
    config = make_config("sac", {"temperature": Learned(0.3, -2.0), "gamma": 0.9, "env": "A"})
    assert with_changes(config) == config
    assert with_changes(config, total_steps=5).run == flat.overlay(config.run, {"total_steps": 5})
    assert with_changes(config, temperature_initial=0.4).learner.temperature == Learned(0.4, -2.0)
    assert with_changes(config, temperature="fixed").learner.temperature == Fixed()
    assert with_changes(config, temperature=Fixed(0.7)).learner.temperature == Fixed(0.7)
    with pytest.raises(UsageError, match="did you mean gamma"):
        with_changes(config, gama=0.5)


def test_a_change_of_a_default_dict_stays_in_its_own_config() -> None:
    one, other = Run().environment, Run().environment
    assert isinstance(one.env_kwargs, dict)
    one.env_kwargs["g"] = 1
    assert other.env_kwargs == {}


def test_a_file_reads_as_algorithm_versions_and_settings_in_order() -> None:
    text = write_yaml(make_config("sac", {"env": "Pendulum-v1", "temperature": Fixed(1e-5)}), VERSIONS)
    keys = [each.name for each in train_settings("sac") if not each.union and each.name != RATE]
    assert list(yaml.safe_load(text)) == ["algorithm", "versions", *keys]
    assert "temperature: {kind: fixed, value: 1.0e-05}" in text
    assert "# Soft actor-critic" in text


def test_numbers_without_a_dot_are_numbers_in_files_and_texts_stay_texts(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("actor_learning_rate: 1e-3\ntotal_steps: 1e4\nenv_kwargs: {g: 2e0, text: '1e-3', on: yes}\n")
    mapping = read_yaml(file)
    assert mapping["env_kwargs"] == {"g": 2.0, "text": "1e-3", True: True}
    mapping["env_kwargs"].pop(True)
    config = make_config("sac", mapping)
    assert (config.learner.rates.actor_learning_rate, config.run.length.total_steps) == (1e-3, 10_000)
    file.write_text(write_yaml(config, {}))
    assert make_config("sac", read_yaml(file)) == config


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [1\nb: 2\n", ["line 2", "is not YAML"]),
        (b"- 1\n- 2\n", ["holds a list", "key: value"]),
        (b"just words\n", ["holds a str"]),
        (b"\xff\xfe\x00", ["UTF-8"]),
        (b"a: !!python/object:os.system {}\n", ["line 1", "is not YAML"]),
    ],
)
def test_a_file_that_holds_no_settings_is_refused_by_name(content: bytes, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError) as refusal:
        read_yaml(file)
    for word in ["bad.yaml", *words]:
        assert word in str(refusal.value)


def test_a_missing_file_is_refused_and_an_empty_one_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nope\.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "nope.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_yaml(tmp_path)
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "empty.yaml") == {}


@dataclass(frozen=True)
class White:
    deviation: float = setting(0.1, "Deviation.", above=0)


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    deviation: float = setting(0.1, "Deviation.", above=0)
    pull: float = setting(0.15, "Pull.")


@dataclass(frozen=True)
class Later:
    """An algorithm that does not exist yet."""

    noise: White | OrnsteinUhlenbeck | None = setting(White(0.3), "Noise.")
    kernels: tuple[Literal["a", "b"], ...] = setting(("a",), "Kernels.")
    table: Mapping[str, Any] = setting({}, "Table.")
    fast: bool | None = setting(None, "Fast.")


def test_a_new_algorithm_needs_no_change_here(monkeypatch: pytest.MonkeyPatch) -> None:
    later = Algorithm("later", Later, {}, learns_from="replay", actions=("box",), groups={})
    monkeypatch.setitem(ALGORITHMS, "later", later)
    names = {each.name: each for each in train_settings("later")}
    assert names["noise_deviation"].of == ("white", "ornstein_uhlenbeck")
    assert names["noise_deviation"].default == 0.3
    assert names["noise_deviation"].default_words == "0.3 for white, 0.1 for ornstein_uhlenbeck"
    assert make_config("later", {}) == Config("later", Run(), Later())
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"noise_deviation": 0.2}, White(0.2)),
        ({"noise": "ornstein_uhlenbeck"}, OrnsteinUhlenbeck()),
        ({"noise": None}, None),
    ]
    for changes, noise in cases:
        assert make_config("later", changes).learner == Later(noise)
    for noise in (White(0.5), OrnsteinUhlenbeck(0.5, 0.6), None):
        config = make_config("later", {"noise": noise, "kernels": ["b"], "fast": True})
        assert make_config("later", flatten(config)) == config
    with pytest.raises(UsageError, match="noise_pull needs noise ornstein_uhlenbeck"):
        make_config("later", {"noise_pull": 0.1})


def test_the_page_of_settings_is_current() -> None:
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text() == settings_page.markdown(), "run python -m offbeat.settings --markdown > docs/settings.md"
