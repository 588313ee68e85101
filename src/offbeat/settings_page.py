"""The page docs/settings.md, made from the dataclasses of the settings."""

from __future__ import annotations

from offbeat.algorithms.configs import ALGORITHMS, Run
from offbeat.coercion import type_words
from offbeat.settings import Setting, settings_of, shared_rate, text_of


def markdown() -> str:
    """The page docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Made from the dataclasses by `python -m offbeat.settings --markdown`; do not edit by hand.",
        "",
        "The same names everywhere: `total_steps=20000` in Python, `total_steps: 20000` in a YAML file,",
        "`--total-steps 20000` on the command line. A flag wins over the file, the file over the environment's",
        "[preset](presets.md), the preset over the default, and of `env_kwargs` each key for itself; ranges are",
        "checked wherever a value comes from. `none` means no value (an empty list where the setting is a list, no key",
        "at all for `env_kwargs`). A setting of one kind (`temperature_value`) goes only with that kind; in YAML and",
        "Python a mapping says the same: `temperature: {kind: fixed, value: 0.2}`. What other libraries call them is",
        "in [coming_from.md](coming_from.md).",
    ]
    owners: dict[str, type] = {"run": Run, **ALGORITHMS}
    for title, owner in owners.items():
        lines += ["", f"## {title}", "", (owner.__doc__ or "").splitlines()[0], ""]
        if without := getattr(owner, "without", ()):
            lines += [f"It has none of these settings of a run: {', '.join(f'`{name}`' for name in without)}.", ""]
        if own := getattr(owner, "run_defaults", {}):
            listing = ", ".join(f"`{name}` {text_of(value)}" for name, value in own.items())
            lines += [f"Its own defaults of a run's settings: {listing}.", ""]
        lines += ["| setting | value | default | range | meaning |", "|---|---|---|---|---|"]
        keys = settings_of(owner) + shared_rate(owner)
        lines += ["| " + " | ".join(_row(each)) + " |" for each in keys]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> tuple[str, ...]:
    only = f" Only with {setting.union} {' or '.join(setting.of)}." if setting.union else ""
    default = f"`{setting.default_words}`" if setting.default != "" else "required"
    return f"`{setting.name}`", type_words(setting.hint), default, setting.range, setting.help + only
