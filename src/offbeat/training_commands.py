"""The words after `offbeat train` and `offbeat resume`: flags, files and presets to settings, and their help."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat import presets
from offbeat.algorithms.configs import Config, Run
from offbeat.coercion import lost
from offbeat.errors import UsageError
from offbeat.flags import Groups, flag, parse, show_help, value_after
from offbeat.help_groups import grouped
from offbeat.ranges import setting
from offbeat.settings import (
    Setting,
    algorithm_named,
    assemble,
    make,
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

DEBUG_HELP = "Show the traceback of an error."
LAYERS_HELP = "Flags win over the file of --config, the file over the environment's preset, that over the defaults."
RESUME_HELP = "Which checkpoint: latest, or its name under checkpoints/. (The best one holds no replay.)"
TOTAL_HELP = "a total that counts those already done, not an addition."
TOTALS = ("total_steps", "total_updates")
BOX, CHOICES = "HalfCheetah-v5", "CartPole-v1"
EXAMPLES = {"dqn": CHOICES, "ppo": CHOICES, "appo": CHOICES}
"""The environment of an algorithm's examples; HalfCheetah for all others."""


@dataclass(frozen=True)
class TrainOptions:
    config: str | None = setting(None, "YAML file with settings; flags win over it, and it wins over the preset.")
    debug: bool = setting(False, DEBUG_HELP)


def read_train(algorithm: str, argv: Sequence[str]) -> Config:
    """The config that the flags of `train` describe: flags over the file of --config over the preset."""
    own = settings_of(TrainOptions)
    _, given = parse(f"train {algorithm}", argv, _train_groups(algorithm), None)
    options = make(TrainOptions, read(own, _of_command(TrainOptions, given)))
    from_file, complete = _read_file(algorithm, options.config)
    from_flags = read(train_settings(algorithm), given, flag)
    if complete and from_flags.get("preset") is not None:
        raise UsageError(
            f"--preset={from_flags['preset']} would set nothing: {options.config} is the record of a run and holds "
            "every setting; leave one of the two out"
        )
    config = (assemble if complete else presets.assemble)(algorithm, from_file, from_flags, spell=flag)
    if not config.run.env:
        raise UsageError("--env is missing; give a Gymnasium id such as --env Pendulum-v1, or module:factory")
    return config


def show_train_help(algorithm: str, argv: Sequence[str]) -> None:
    """Prints the flags of `train ALGO` in groups, below three examples."""
    owner = algorithm_named(algorithm)
    env = EXAMPLES.get(algorithm, BOX)
    examples = [
        f"offbeat train {algorithm} --env {env}",
        f"offbeat train {algorithm} --env {env} --num-envs 8 --collectors 2 --total-steps 200000 --seed 3",
        f"offbeat train {algorithm} --env my_package:make --env-kwargs size=3 --hidden 128 128 --learning-rate 3e-4",
    ]
    description = "\n\n".join([*examples, f"{first_line(owner)} {LAYERS_HELP}"])
    show_help(f"train {algorithm}", description, _train_groups(algorithm), _help_values(algorithm, argv), None)


RESUME_DESCRIPTION = "Goes on with a run from its checkpoint."


@dataclass(frozen=True)
class ResumeOptions:
    checkpoint: str = setting("latest", RESUME_HELP)
    debug: bool = setting(False, DEBUG_HELP)


def read_resume(argv: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """The run, the checkpoint and the settings that `resume` is to change."""
    algorithm, _ = _recorded(argv)
    run, given = parse("resume", argv, _resume_groups(algorithm), "RUN")
    options = make(ResumeOptions, read(settings_of(ResumeOptions), _of_command(ResumeOptions, given), flag))
    return run, options.checkpoint, read(_changeable(algorithm), given, flag)


def show_resume_help(argv: Sequence[str]) -> None:
    """Prints the flags of `resume`; where RUN is among the words, with all settings of the run and their values."""
    algorithm, values = _recorded(argv)
    more = "" if algorithm else " offbeat resume RUN --help shows the run's own values, and its algorithm's settings."
    text = f"{RESUME_DESCRIPTION} Settings that are given change from there on; what cannot change is refused.{more}"
    from offbeat.run.changes import FIXED

    groups = {
        title: [each for each in settings if each.name not in FIXED]
        for title, settings in _resume_groups(algorithm).items()
    }
    show_help("resume", text, groups, values, "RUN")


def _recorded(argv: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Algorithm and settings of the run that is named among the words; none where there is none that can be read."""
    for word in (word for word in argv if not word.startswith("-") and (Path(word) / "config.yaml").is_file()):
        with contextlib.suppress(UsageError):  # the record is for people: the checkpoint says what the run is
            mapping = read_yaml(Path(word) / "config.yaml")
            algorithm = str(mapping.pop("algorithm", ""))
            algorithm_named(algorithm)
            kept = {name: value for name, value in mapping.items() if lost(value) is None and name != "quiet"}
            return algorithm, read(train_settings(algorithm), kept)
    return None, {}


def _changeable(algorithm: str | None) -> tuple[Setting, ...]:
    return settings_of(Run) if algorithm is None else train_settings(algorithm)


def _resume_groups(algorithm: str | None) -> Groups:
    own = own_settings(algorithm) if algorithm is not None else ()
    run = [
        dataclasses.replace(each, help=f"{each.help} This is {TOTAL_HELP}") if each.name in TOTALS else each
        for each in (settings_of(Run) if algorithm is None else run_settings(algorithm))
    ]
    return {"": settings_of(ResumeOptions), **grouped(run, algorithm or "", own)}


def _of_command(options: type, given: dict[str, Any]) -> dict[str, Any]:
    """The flags of the command itself, which leave `given`."""
    return {each.name: given.pop(each.name) for each in settings_of(options) if each.name in given}


def first_line(owner: type) -> str:
    return (owner.__doc__ or "").splitlines()[0]


def _read_file(algorithm: str, path: str | None) -> tuple[dict[str, Any], bool]:
    """The settings in a file, if there is one, and whether a run wrote it: then it leaves nothing to a preset."""
    if path is None:
        return {}, False
    mapping = load_yaml(path)
    complete = mapping.pop("versions", None) is not None
    if mapping.pop("algorithm", algorithm) != algorithm:
        raise UsageError(f"{path} holds settings of another algorithm than {algorithm}; see its line `algorithm:`")
    try:
        return read(train_settings(algorithm), mapping), complete
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _help_values(algorithm: str, argv: Sequence[str]) -> dict[str, Any]:
    """What stands in the help for the defaults: the file of --config over the preset, where there are such."""
    values, complete = _read_file(algorithm, value_after(argv, "--config"))
    given = {name: value for name in ("env", "preset") if (value := value_after(argv, flag(name))) is not None}
    asked = read(train_settings(algorithm), given, flag)
    [values] = spread_rate(algorithm_named(algorithm), [values])
    return values if complete else merge(presets.pick(algorithm, values | asked, flag)[1], values)


def _train_groups(algorithm: str) -> Groups:
    return {"": settings_of(TrainOptions), **grouped(run_settings(algorithm), algorithm, own_settings(algorithm))}
