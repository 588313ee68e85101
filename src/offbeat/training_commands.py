"""Arguments and help of `offbeat train` and `offbeat resume`: flags, config files and presets become settings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offbeat import presets
from offbeat.algorithms.configs import Config, Run
from offbeat.algorithms.registry import find
from offbeat.coercion import lost
from offbeat.errors import UsageError
from offbeat.flags import Groups, flag, parse, show_help, value_after
from offbeat.help_groups import grouped
from offbeat.settings import (
    Setting,
    assemble,
    merge,
    own_settings,
    read,
    read_yaml,
    run_settings,
    settings_of,
    spread_rate,
    train_settings,
)
from offbeat.yamltext import load_yaml

PRECEDENCE_HELP = "Precedence: flags, then the --config file, then the preset of the environment, then the defaults."
RESUME_CHECKPOINT_HELP = (
    "Checkpoint to resume from: latest, or its name under checkpoints/. `best` has no replay and cannot be resumed."
)
TOTAL_HELP = "The number is a total that includes what is already done, not an addition."
TOTALS = ("total_steps", "total_updates")
CONTINUOUS_EXAMPLE, DISCRETE_EXAMPLE = "HalfCheetah-v5", "CartPole-v1"
"""Environment in the examples of the help: CartPole for Discrete actions and for rollouts."""


DEBUG = Setting("debug", bool, False, "Print the traceback of an error.")
CONFIG = Setting("config", str | None, None, "YAML file with settings. Flags override it; it overrides the preset.")
CHECKPOINT = Setting("checkpoint", str, "latest", RESUME_CHECKPOINT_HELP)


def read_train(algorithm: str, argv: Sequence[str]) -> Config:
    """The config of a run, from flags, the --config file, the preset and the defaults, in this order of precedence."""
    _, given = parse(f"train {algorithm}", argv, _train_groups(algorithm), None)
    path = read([CONFIG], {"config": given.pop("config", None)})["config"]
    from_file, complete = _read_file(algorithm, path)
    from_flags = read(train_settings(algorithm), given, flag)
    if complete and from_flags.get("preset") is not None:
        raise UsageError(
            f"--preset={from_flags['preset']} has no effect with --config {path}: this config.yaml of a "
            "run sets everything; leave out one of the two"
        )
    config = (assemble if complete else presets.assemble)(algorithm, from_file, from_flags, spell=flag)
    if not config.run.environment.env:
        raise UsageError("--env is missing; give a Gymnasium id such as --env Pendulum-v1, or module:factory")
    return config


def show_train_help(algorithm: str, argv: Sequence[str]) -> None:
    """Prints the flags of `train ALGO` in groups, below three examples."""
    record = find(algorithm)
    env = CONTINUOUS_EXAMPLE if "box" in record.actions and record.learns_from == "replay" else DISCRETE_EXAMPLE
    examples = [
        f"offbeat train {algorithm} --env {env}",
        f"offbeat train {algorithm} --env {env} --num-envs 8 --collectors 2 --total-steps 200000 --seed 3",
        f"offbeat train {algorithm} --env my_package:make --env-kwargs size=3 --hidden 128 128 --learning-rate 3e-4",
    ]
    description = "\n\n".join([*examples, f"{record.description} {PRECEDENCE_HELP}"])
    show_help(f"train {algorithm}", description, _train_groups(algorithm), _help_values(algorithm, argv), None)


RESUME_DESCRIPTION = "Resume a run from a checkpoint."


def read_resume(argv: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """The run, the checkpoint and the settings to change."""
    algorithm, _ = _recorded_settings(argv)
    run, given = parse("resume", argv, _resume_groups(algorithm), "RUN")
    checkpoint = given.pop("checkpoint", CHECKPOINT.default)
    return run, checkpoint, read(_known_settings(algorithm), given, flag)


def show_resume_help(argv: Sequence[str]) -> None:
    """Prints the flags of `resume`. If `argv` contains RUN, they include the settings of the run with their values."""
    algorithm, values = _recorded_settings(argv)
    hint = "" if algorithm else " offbeat resume RUN --help shows the values of the run and the flags of its algorithm."
    text = f"{RESUME_DESCRIPTION} Flags change settings from that checkpoint on; fixed settings are refused.{hint}"
    from offbeat.run.changes import FIXED

    groups = {
        title: [each for each in settings if each.name not in FIXED]
        for title, settings in _resume_groups(algorithm).items()
    }
    show_help("resume", text, groups, values, "RUN")


def _recorded_settings(argv: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Algorithm and settings in the config.yaml of the run that `argv` names; (None, {}) if there is none to read."""
    for word in (word for word in argv if not word.startswith("-") and (Path(word) / "config.yaml").is_file()):
        with contextlib.suppress(UsageError):  # config.yaml is only a record; resume reads the checkpoint
            mapping = read_yaml(Path(word) / "config.yaml")
            algorithm = str(mapping.pop("algorithm", ""))
            find(algorithm)
            kept = {name: value for name, value in mapping.items() if lost(value) is None and name != "quiet"}
            return algorithm, read(train_settings(algorithm), kept)
    return None, {}


def recorded_learners(run: Path) -> int:
    """The number of learners in the config.yaml of a run."""
    with contextlib.suppress(UsageError, OSError):  # resume itself says what is wrong with the run
        return int(read_yaml(run / "config.yaml").get("learners", 1))
    return 1


def _known_settings(algorithm: str | None) -> tuple[Setting, ...]:
    return settings_of(Run) if algorithm is None else train_settings(algorithm)


def _resume_groups(algorithm: str | None) -> Groups:
    own = own_settings(algorithm) if algorithm is not None else ()
    run = [
        dataclasses.replace(each, help=f"{each.help} {TOTAL_HELP}") if each.name in TOTALS else each
        for each in (settings_of(Run) if algorithm is None else run_settings(algorithm))
    ]
    return {"": [CHECKPOINT, DEBUG], **grouped(run, find(algorithm).name if algorithm else "", own)}


def _read_file(algorithm: str, path: str | None) -> tuple[dict[str, Any], bool]:
    """The settings in the file, and whether a run wrote it; such a file sets everything, so no preset applies."""
    if path is None:
        return {}, False
    mapping = load_yaml(path)
    complete = mapping.pop("versions", None) is not None
    if mapping.pop("algorithm", algorithm) != algorithm:
        raise UsageError(f"{path} has settings of another algorithm than {algorithm}; see its line `algorithm:`")
    try:
        return read(train_settings(algorithm), mapping), complete
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _help_values(algorithm: str, argv: Sequence[str]) -> dict[str, Any]:
    """Values that the help shows as defaults: those of the --config file, then those of the preset."""
    values, complete = _read_file(algorithm, value_after(argv, "--config"))
    given = {name: value for name in ("env", "preset") if (value := value_after(argv, flag(name))) is not None}
    asked = read(train_settings(algorithm), given, flag)
    [values] = spread_rate(find(algorithm).config, [values])
    return values if complete else merge(presets.pick(algorithm, values | asked, flag)[1], values)


def _train_groups(algorithm: str) -> Groups:
    return {
        "": [CONFIG, DEBUG],
        **grouped(run_settings(algorithm), find(algorithm).name, own_settings(algorithm)),
    }
