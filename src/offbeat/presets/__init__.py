"""Presets: settings from the literature by algorithm and environment. They win over the defaults, and a file over them.

One YAML file per algorithm maps the exact id of an environment to settings by their flat names, and `source`: whose
values they are, and which are ours. A config holds the name of its preset. `resume` and a run's own config.yaml hold
every setting and use no preset.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from offbeat import flat, settings
from offbeat.algorithms.configs import Config, IdleSetting, Run
from offbeat.coercion import Spell, shown, text_of
from offbeat.errors import UsageError
from offbeat.yamltext import parse_yaml

AUTO = "auto"
SOURCE = "source"
OF_THE_ENVIRONMENT = {"env_kwargs"}
"""Settings that describe the environment of a preset; they are left out if another environment uses the preset."""

OF_PLAIN_NETWORKS = {"batch_size"}
"""Settings that count transitions; they are left out if the networks are recurrent, which count sequences."""


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
    """Environment id to the source of the preset's values, and which settings are ours."""
    return {name: entry[SOURCE] for name, entry in _entries(algorithm).items()}


def pick(algorithm: str, given: Mapping[str, Any], spell: Spell = str) -> tuple[str | None, dict[str, Any]]:
    """Name and settings, as checked flat values, of the preset for what is given (env, preset, network).

    None and {} where none fits.
    """
    known, env, wanted = presets_of(algorithm), given.get("env", ""), given.get("preset", AUTO)
    name = wanted if wanted != AUTO else env if env in known else None
    if name is None:
        return None, {}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"{spell('preset')}={shown(name)} is not a preset of {algorithm}: use {', '.join(('auto', 'none', *known))}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    without: set[str] = OF_THE_ENVIRONMENT if name != env else set()
    without = without | OF_PLAIN_NETWORKS if given.get("network", "mlp") != "mlp" else without
    preset = {key: value for key, value in known[name].items() if key not in without}
    return name, settings.read(settings.train_settings(algorithm), preset)


def assemble(algorithm: str, *layers: Mapping[str, Any], spell: Spell = str) -> Config:
    """As `settings.assemble`, over the preset that the layers select. Later layers win over earlier ones."""
    given = {key: value for layer in layers for key, value in layer.items()}
    name, preset = pick(algorithm, given, spell)
    short = _for_short_runs(algorithm, preset, preset | given)
    while True:
        try:
            return settings.assemble(algorithm, preset, short, *layers, {"preset": name}, spell=spell)
        except IdleSetting as idle:
            if idle.name in given or idle.name not in preset:
                raise
            del preset[idle.name]  # it has no effect together with what is given


SHARE_BEFORE_LEARNING = 4
"""Random and warm-up steps that the user did not set are at most a run's steps divided by this."""


def _for_short_runs(algorithm: str, preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Fewer random and warm-up steps than the preset or the defaults have, where these would be most of a short run."""
    most = max(1, given.get("total_steps", Run().length.total_steps) // SHARE_BEFORE_LEARNING)
    usual = {each.name: preset.get(each.name, each.default) for each in settings.run_settings(algorithm)}
    names = [name for name in ("random_steps", "warmup_steps") if usual.get(name, 0) > most]
    learned = {"random_steps": 0} if given.get("init_from") is not None and "random_steps" in usual else {}
    return dict.fromkeys(names, most) | learned


def short_run(config: Config) -> str | None:
    """Which steps a short run has fewer of than the preset or the defaults; None if it is long enough."""
    values = settings.flat_values(config.run)
    preset = pick(config.algorithm, values)[1] if config.run.start.preset in presets_of(config.algorithm) else {}
    short = _for_short_runs(config.algorithm, preset, values)
    fewer = [name for name, steps in short.items() if values[name] == steps > 0]
    if not fewer:
        return None
    usual = {name: preset.get(name, flat.value(Run(), name)) for name in fewer}
    return f"short run: {_listing({name: values[name] for name in fewer})} (normally {_listing(usual)})"


def kept(config: Config) -> dict[str, Any]:
    """The settings that a config has from its preset, and would not have by default."""
    if config.run.start.preset not in presets_of(config.algorithm):
        return {}
    values = settings.all_values(config)
    without = settings.make_config(config.algorithm, {})
    defaults = settings.all_values(without)
    preset = pick(config.algorithm, values)[1]
    return {
        key: value
        for key, value in preset.items()
        if settings.merge(values, {key: value}) == values and (key not in defaults or value != defaults[key])
    }


def sentence(config: Config) -> str | None:
    """The name of a config's preset and what it sets; None if it sets nothing or no longer exists."""
    held = kept(config)
    return (
        f"preset: {config.algorithm} on {config.run.start.preset} ({_listing(held)}); flags override" if held else None
    )


def _listing(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {text_of(value)}" for key, value in values.items())


def markdown() -> str:
    """The page docs/presets.md."""
    lines = [
        "# Presets",
        "",
        "Generated from the files in `src/offbeat/presets` by `python -m offbeat.presets --markdown`; do not edit",
        "by hand.",
        "",
        "A preset is a set of settings from the literature for one algorithm on one environment.",
        '`offbeat train td3 --env HalfCheetah-v5` and `offbeat.train("td3", "HalfCheetah-v5")` use the preset of that',
        "exact id. The first lines of the run print its name and what it sets.",
        "",
        "- Flags and Python arguments win over a `--config` file, the file over the preset, and the preset over the",
        "  [defaults](settings.md). `offbeat train td3 --env HalfCheetah-v5 --help` shows the values of the preset.",
        "- For `env_kwargs` this holds for each key: `--env LunarLander-v3 --env-kwargs gravity=-5` keeps the preset's",
        "  `continuous=true`. `--env-kwargs none` removes all keys.",
        "- `--preset none` uses no preset. `--preset HalfCheetah-v5` uses the preset of another environment, for",
        "  example for a factory (`--env my_package:make`) or another version. Its `env_kwargs` are then left out.",
        "- The random and warm-up steps of a preset, or of the defaults, are limited to a quarter of `total_steps`. A",
        "  short run prints this in its first lines. Values that you set are not limited.",
        "- The `batch_size` of a preset counts transitions. With a recurrent `network`, whose batches count sequences,",
        "  it is left out.",
        "- The `config.yaml` of a run names the preset and holds every setting, so it repeats the run even if a preset",
        "  changes later. `resume` reads no preset, and neither does an `offbeat.Agent` in your own loop.",
        "",
        "Where an environment has no preset, the defaults are a good start. The last column names the source of the",
        "values, and the settings that are our own choice. `tests/preset_sources.yaml` holds the values of the",
        "sources, and a test compares them. Values are converted where units differ:",
        "",
        "- Our value loss is half the squared error, so `value_coefficient` is twice that of RL Baselines3 Zoo.",
        "- `initial_log_std` is for actions in [-1, 1], not in the units of the environment.",
        "- Intervals count updates.",
        "",
        "[results.md](results.md) lists the presets that were trained here, with their results. The others are",
        "untested.",
    ]
    files = sorted(each.name for each in resources.files(__name__).iterdir() if each.name.endswith(".yaml"))
    for algorithm in (name.removesuffix(".yaml") for name in files):
        lines += ["", f"## {algorithm}", "", "| environment | settings | source |", "|---|---|---|"]
        sources = sources_of(algorithm)
        lines += [f"| `{name}` | {_listing(each)} | {sources[name]} |" for name, each in presets_of(algorithm).items()]
    return "\n".join(lines) + "\n"
