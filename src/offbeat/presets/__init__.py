"""Presets: settings from the literature, by algorithm and environment, below a config file and above the defaults.

One YAML file per algorithm maps the exact id of an environment to settings by their flat names, and `source`: whose
figures they are, and which are ours. A config remembers the name of its preset; `resume` and a run's own config.yaml
hold every setting and ask for none.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from offbeat import settings
from offbeat.algorithms.configs import Config, IdleSetting, Run
from offbeat.coercion import Spell, shown
from offbeat.errors import UsageError
from offbeat.yamltext import parse_yaml

AUTO = "auto"
SOURCE = "source"
OF_THE_ENVIRONMENT = {"env_kwargs"}
"""Settings that describe the environment of a preset: another environment that borrows the preset goes without."""


@functools.cache
def _entries(algorithm: str) -> Mapping[str, Mapping[str, Any]]:
    """The algorithm's file; empty where there is none."""
    file = resources.files(__name__) / f"{algorithm}.yaml"
    return parse_yaml(file.read_text(encoding="utf-8")) if file.is_file() else {}


@functools.cache
def presets_of(algorithm: str) -> Mapping[str, Mapping[str, Any]]:
    """Environment id to settings, in the order of the algorithm's file."""
    return {
        name: {key: value for key, value in entry.items() if key != SOURCE}
        for name, entry in _entries(algorithm).items()
    }


def sources_of(algorithm: str) -> Mapping[str, str]:
    """Environment id to where the preset's figures come from, and which settings are ours."""
    return {name: entry[SOURCE] for name, entry in _entries(algorithm).items()}


def pick(algorithm: str, given: Mapping[str, Any], spell: Spell = str) -> tuple[str | None, dict[str, Any]]:
    """Name and settings of the preset for what is given (env, preset), as checked flat values; None where none fits."""
    known, env, wanted = presets_of(algorithm), given.get("env", ""), given.get("preset", AUTO)
    name = wanted if wanted != AUTO else env if env in known else None
    if name is None:
        return None, {}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"{spell('preset')}={shown(name)} is no preset of {algorithm}: use {', '.join(('auto', 'none', *known))}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    preset = {key: value for key, value in known[name].items() if name == env or key not in OF_THE_ENVIRONMENT}
    return name, settings.read(settings.train_settings(algorithm), preset)


def assemble(algorithm: str, *layers: Mapping[str, Any], spell: Spell = str) -> Config:
    """As `settings.assemble`: later layers win, below them all lies the preset that they ask for, then the defaults."""
    given = {key: value for layer in layers for key, value in layer.items()}
    name, preset = pick(algorithm, given, spell)
    short = _for_short_runs(algorithm, preset, preset | given)
    while True:
        try:
            return settings.assemble(algorithm, preset, short, *layers, {"preset": name}, spell=spell)
        except IdleSetting as idle:
            if idle.name in given or idle.name not in preset:
                raise
            del preset[idle.name]  # what is given leaves it without effect


SHARE_BEFORE_LEARNING = 4
"""Random and warm-up steps that nobody has asked for are at most one part in so many of a run."""


def _for_short_runs(algorithm: str, preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Fewer random and warm-up steps than the preset or the defaults have, where these would be most of a short run."""
    most = max(1, given.get("total_steps", Run().total_steps) // SHARE_BEFORE_LEARNING)
    usual = {each.name: preset.get(each.name, each.default) for each in settings.run_settings(algorithm)}
    names = [name for name in ("random_steps", "warmup_steps") if usual.get(name, 0) > most]
    learned = {"random_steps": 0} if given.get("init_from") is not None and "random_steps" in usual else {}
    return dict.fromkeys(names, most) | learned


def short_run(config: Config) -> str | None:
    """What a short run has less of than the preset or the defaults say; None where it is long enough."""
    values = settings.flat_values(config.run)
    preset = pick(config.algorithm, values)[1] if config.run.preset in presets_of(config.algorithm) else {}
    short = _for_short_runs(config.algorithm, preset, values)
    fewer = [name for name, steps in short.items() if values[name] == steps > 0]
    if not fewer:
        return None
    usual = {name: preset.get(name, getattr(Run(), name)) for name in fewer}
    return f"short run: {_listing({name: values[name] for name in fewer})} (otherwise {_listing(usual)})"


def kept(config: Config) -> dict[str, Any]:
    """What a config has of its preset and would not have without it."""
    if config.run.preset not in presets_of(config.algorithm):
        return {}
    values = settings.flat_values(config.run) | settings.flat_values(config.learner)
    without = settings.build(config.algorithm, {})
    defaults = settings.flat_values(without.run) | settings.flat_values(without.learner)
    preset = pick(config.algorithm, values)[1]
    return {
        key: value
        for key, value in preset.items()
        if settings.merge(values, {key: value}) == values and (key not in defaults or value != defaults[key])
    }


def sentence(config: Config) -> str | None:
    """Which preset a config was made with and what it changes; None where it changes nothing, or is gone."""
    held = kept(config)
    return f"preset: {config.algorithm} on {config.run.preset} ({_listing(held)}); flags override" if held else None


def _listing(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {settings.text_of(value)}" for key, value in values.items())


def markdown() -> str:
    """The page docs/presets.md."""
    lines = [
        "# Presets",
        "",
        "Made from the files in `src/offbeat/presets` by `python -m offbeat.presets --markdown`; do not edit by hand.",
        "",
        "Settings from the literature, for an algorithm on an environment. `offbeat train td3 --env HalfCheetah-v5`",
        'and `offbeat.train("td3", "HalfCheetah-v5")` take the one for that exact id by themselves, and the first',
        "lines of the run say which one it is and what it sets.",
        "",
        "- Flags and Python arguments win over a `--config` file, the file over the preset, the preset over the",
        "  [defaults](settings.md). `offbeat train td3 --env HalfCheetah-v5 --help` shows the preset's values.",
        "- Of `env_kwargs` each key counts for itself: `--env LunarLander-v3 --env-kwargs gravity=-5` keeps the",
        "  preset's `continuous=true`. `--env-kwargs none` goes without any.",
        "- Random and warm-up steps of a preset, or of the defaults, are at most a quarter of `total_steps`; a short",
        "  run says so in its first lines. Those that you set are as you set them.",
        "- `--preset none` goes without. `--preset HalfCheetah-v5` takes the preset of another environment, for",
        "  example for a factory (`--env my_package:make`) or another version of it; `env_kwargs` are left out then.",
        "- The `config.yaml` of a run names the preset and holds every setting, so that it repeats the run whatever",
        "  the presets say by then. `resume` asks for none, and an `offbeat.Agent` in a loop of your own has none.",
        "",
        "Where an environment has no preset, the defaults are a good start. The last column says whose figures a",
        "preset has and which settings are ours; `tests/preset_sources.yaml` has the sources' own values, and a test",
        "compares. They are converted where units differ: our value loss is half the squared error (so",
        "`value_coefficient` is twice RL Baselines3 Zoo's), `initial_log_std` is for actions in [-1, 1] and not in the",
        "environment's units, and intervals count updates. Which presets have been trained here, and what came of it,",
        "is in [results.md](results.md); the others are a start and not a promise.",
    ]
    files = sorted(each.name for each in resources.files(__name__).iterdir() if each.name.endswith(".yaml"))
    for algorithm in (name.removesuffix(".yaml") for name in files):
        lines += ["", f"## {algorithm}", "", "| environment | settings | source |", "|---|---|---|"]
        sources = sources_of(algorithm)
        lines += [f"| `{name}` | {_listing(each)} | {sources[name]} |" for name, each in presets_of(algorithm).items()]
    return "\n".join(lines) + "\n"
