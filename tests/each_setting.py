"""Every setting once, each with a value that is not its default."""

from __future__ import annotations

from typing import Any

from needs import NEEDS
from offbeat import settings
from offbeat.algorithms.configs import Config
from offbeat.algorithms.registry import ALGORITHMS
from offbeat.errors import UsageError
from offbeat.settings import make_config, train_settings


def every_setting() -> list[tuple[str, settings.Setting]]:
    """Each with the first algorithm that has it; one with another default or meaning elsewhere is another."""
    found = {repr(each): (algorithm, each) for algorithm in reversed(ALGORITHMS) for each in train_settings(algorithm)}
    return list(found.values())


def named(value: Any) -> str:
    """As pytest shows it in a test's name."""
    return value.name if isinstance(value, settings.Setting) else str(value)


def needed(each: settings.Setting) -> dict[str, Any]:
    """What has to be set besides."""
    return ({each.union: each.of[0]} if each.union else {}) | NEEDS.get(each.name, {})


def changed(algorithm: str, each: settings.Setting) -> tuple[Any, Config]:
    """Another value, and a config in which this setting, and nothing but what it needs, is not the default."""
    literals = [choice for member in settings.alternatives(each.hint) for choice in getattr(member, "__args__", ())]
    numbers = [3, 0.5, 1, -1, 10**7, 1e-3]
    others = [True, False, (0.5, 0.5), "offbeat.references:resolve", (3, 5), (), {"g": 9.81, "names": ["a"]}, {"g": 2}]
    for value in [*literals, *numbers, *others]:
        try:
            config = make_config(algorithm, {**needed(each), each.name: value})
        except UsageError:
            continue
        if config != make_config(algorithm, needed(each)):
            return value, config
    raise AssertionError(f"no value found for {each.name} that differs from its default")
