"""Malicious YAML is refused as a usage error, before it uses much memory or time."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat.cli import main
from offbeat.errors import UsageError
from offbeat.settings import make_config
from offbeat.yamltext import MAX_BYTES, MAX_VALUES, load_yaml, parse_yaml

NINE = {name: ", ".join([f"*{before}"] * 9) for before, name in zip("abcdefgh", "bcdefghi", strict=True)}
BOMB = "[&a [x, x], " + ", ".join(f"&{name} [{aliases}]" for name, aliases in NINE.items()) + "]"
MERGES = "[&a {x: 1}, " + ", ".join(f"&{name} {{<<: [{aliases}]}}" for name, aliases in NINE.items()) + "]"
HOSTILE = {
    "an int that is none": ("!!int 'x'", "'x' is not of the type int"),
    "an empty int": ("!!int ''", "'' is not of the type int"),
    "a float that is none": ("!!float 'x'", "is not of the type float"),
    "a bool that is none": ("!!bool 'x'", "is not of the type bool"),
    "a timestamp that is none": ("!!timestamp 'x'", "is not of the type timestamp"),
    "the 99th of a month": ("2024-01-99", "'2024-01-99' is not of the type timestamp"),
    "digits without end": ("1" * 5_000, "a number of 5000 characters; at most 400 are read"),
    "minutes without end": ("1" + ":1" * 5_000, "a number of 10001 characters"),
    "a list in itself": ("&a [*a]", "the alias *a is inside of its own anchor &a"),
    "a mapping in itself": ("&a {x: [1, *a]}", "the alias *a is inside of its own anchor &a"),
    "a deep list": ("[" * 20_000 + "]" * 20_000, "more than 50 levels of nested lists and mappings"),
    "a deep mapping": ("{a: " * 20_000 + "1" + "}" * 20_000, "more than 50 levels"),
    "a bomb of aliases": (BOMB, f"more than {MAX_VALUES} values"),
    "a bomb of merges": (MERGES, f"more than {MAX_VALUES} values"),
    "an alias of nothing": ("*a", "undefined alias"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_wrong_use_and_names_its_line(name: str, tmp_path: Path, capsys) -> None:
    text, words = HOSTILE[name]
    file = tmp_path / "settings.yaml"
    file.write_text(f"env: Pendulum-v1\nenv_kwargs: {{a: {text}}}\n")
    assert main(["train", "sac", "--config", str(file), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{file}, line 2" in said
    assert words in said
    assert "unexpected" not in said
    assert sorted(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_flag_is_wrong_use(name: str, tmp_path: Path, capsys) -> None:
    text, words = HOSTILE[name]
    assert main(["train", "sac", "--env", "Pendulum-v1", "--env-kwargs", f"a={text}", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said) < 600
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_end_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text("a: " + "x" * MAX_BYTES)
    with pytest.raises(UsageError, match=f"at most {MAX_BYTES} are read"):
        load_yaml(tmp_path / "large.yaml")
    if Path("/dev/zero").exists():
        with pytest.raises(UsageError, match="at most"):
            load_yaml("/dev/zero")


def test_aliases_merges_and_nesting_of_people_are_read() -> None:
    text = "base: &base {a: 1, b: [1, 2]}\nmine: {<<: *base, b: &b [3]}\nlist: [*b, *base, 1e-3, 2024-01-09]\n"
    content = parse_yaml(text)
    assert content["mine"] == {"a": 1, "b": [3]}
    assert content["list"][:3] == [[3], {"a": 1, "b": [1, 2]}, 1e-3]
    assert parse_yaml("[" * 50 + "]" * 50) is not None


def test_a_python_mapping_that_contains_itself_is_wrong_use() -> None:
    endless: dict[str, object] = {}
    endless["a"] = [endless]
    with pytest.raises(UsageError, match="env_kwargs contains itself or is nested too deeply"):
        make_config("sac", {"env": "Pendulum-v1", "env_kwargs": endless})
