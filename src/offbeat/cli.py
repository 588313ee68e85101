"""The command `offbeat`. Heavy libraries are imported by the handler that needs them, after everything is checked."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from offbeat import __version__
from offbeat.algorithms.configs import ALGORITHMS, Reference, Run
from offbeat.coercion import suggestion
from offbeat.descriptors import occupy_standard
from offbeat.errors import OffbeatError, RunInterrupted, UsageError
from offbeat.flags import flag, parse, show_help, wants_help
from offbeat.ranges import setting
from offbeat.settings import algorithm_named, make, read, settings_of
from offbeat.training_commands import (
    DEBUG_HELP,
    RESUME_DESCRIPTION,
    first_line,
    read_resume,
    read_train,
    show_resume_help,
    show_train_help,
)

CHECKPOINT_HELP = "Which checkpoint: latest, best, or its name under checkpoints/."


def _as_in_run(name: str) -> Any:
    """A field that means what the same flag of `train` means."""
    one = Run.__dataclass_fields__[name]
    return dataclasses.field(default=one.default, default_factory=one.default_factory, metadata=one.metadata)


@dataclass(frozen=True)
class EvalOptions:
    episodes: int = setting(20, "Episodes to run.", at_least=1)
    video: bool = setting(False, "Film the first episode.")
    checkpoint: str = setting("latest", CHECKPOINT_HELP)
    seed: int | None = setting(None, "Seed of the episodes; none takes the run's.", at_least=0)
    env: str | None = setting(None, "Another environment with the same spaces: id or module:factory.")
    env_kwargs: Mapping[str, Any] = setting(None, "Arguments laid over the run's; 'none' goes without any.")
    env_wrapper: Reference | None = setting(None, "module:callable in the place of the run's.")
    max_episode_steps: int | None = setting(None, "Truncate episodes here; none is as in the run.", at_least=1)
    debug: bool = setting(False, DEBUG_HELP)


@dataclass(frozen=True)
class PlayOptions:
    episodes: int = setting(5, "Episodes to play.", at_least=1)
    checkpoint: str = setting("latest", CHECKPOINT_HELP)
    seed: int | None = setting(None, "Seed of the episodes; none takes the run's.", at_least=0)
    debug: bool = setting(False, DEBUG_HELP)


@dataclass(frozen=True)
class DigestOptions:
    checkpoint: str = setting("latest", CHECKPOINT_HELP)
    debug: bool = setting(False, DEBUG_HELP)


@dataclass(frozen=True)
class TraceOptions:
    debug: bool = setting(False, DEBUG_HELP)


@dataclass(frozen=True)
class CheckEnvOptions:
    env_kwargs: Mapping[str, Any] = _as_in_run("env_kwargs")
    env_wrapper: Reference | None = _as_in_run("env_wrapper")
    max_episode_steps: int | None = _as_in_run("max_episode_steps")
    state_key: str | None = _as_in_run("state_key")
    mask_key: str | None = _as_in_run("mask_key")
    steps: int = setting(500, "Steps to take with random actions.", at_least=1)
    seed: int = setting(0, "Seed of resets and actions.", at_least=0)
    debug: bool = setting(False, DEBUG_HELP)


def _train(argv: Sequence[str]) -> int:
    algorithms = "\n".join(f"  {name:<8}{first_line(owner)}" for name, owner in ALGORITHMS.items())
    if argv and wants_help(argv[:1]):
        _say(f"usage: offbeat train ALGO [OPTIONS]\n\n{algorithms}\n\nFlags: offbeat train ALGO --help")
        return 0
    if not argv or argv[0].startswith("-"):
        raise UsageError(
            f"offbeat train needs an algorithm as its first word ({', '.join(ALGORITHMS)}), for example "
            "offbeat train sac --env Pendulum-v1"
        )
    algorithm, argv = argv[0], argv[1:]
    algorithm_named(algorithm)
    if wants_help(argv):
        with _reader_may_leave(sys.stdout):
            show_train_help(algorithm, argv)
        return 0
    config = read_train(algorithm, argv)
    from offbeat.run import api

    return _finished(lambda: api.train_config(config))


def _resume(argv: Sequence[str]) -> int:
    if wants_help(argv):
        with _reader_may_leave(sys.stdout):
            show_resume_help(argv)
        return 0
    run, checkpoint, changes = read_resume(argv)
    path = _run_directory(run)
    from offbeat.run import api

    return _finished(lambda: api.resume(path, checkpoint=checkpoint, **changes))


def _finished(training: Callable[[], Any]) -> int:
    """Trains, and says where; a run that was stopped and saved is done, too."""
    try:
        result = training()
    except RunInterrupted as stopped:
        result = stopped.result
    _say(f"run: {result.path}")
    return 0


def _eval(run: str, options: EvalOptions) -> int:
    path = _run_directory(run)
    from offbeat.run import saved

    result = saved.evaluate(
        path,
        options.env,
        episodes=options.episodes,
        checkpoint=options.checkpoint,
        seed=options.seed,
        video=options.video,
        env_kwargs=options.env_kwargs,
        env_wrapper=options.env_wrapper,
        max_episode_steps=options.max_episode_steps,
    )
    _say(f"return: {result.mean_return:.2f} (std {result.std_return:.2f}) over {result.episodes} episodes")
    _say(f"length: {result.mean_length:.1f}")
    if result.success_rate is not None:
        _say(f"success: {result.success_rate:.2f}")
    if result.video is not None:
        _say(f"video: {result.video}")
    return 0


def _play(run: str, options: PlayOptions) -> int:
    path = _run_directory(run)
    from offbeat.run import play

    play.play_run(path, episodes=options.episodes, checkpoint=options.checkpoint, seed=options.seed, say=_say)
    return 0


def _digest(run: str, options: DigestOptions) -> int:
    path = _run_directory(run)
    from offbeat.run import checkpoint

    _say(checkpoint.digest(path, options.checkpoint))
    return 0


def _trace(run: str, options: TraceOptions) -> int:
    path = _run_directory(run) / "trace.json"
    if not path.is_file():
        raise UsageError(f"RUN={run!r} has no trace.json, because it was not traced; train it with --trace")
    from offbeat.observe import timetable

    _say(f"{timetable.text(path)}\n\ntrace: {path} (ui.perfetto.dev or chrome://tracing opens it)")
    return 0


def _check_env(env: str, options: CheckEnvOptions) -> int:
    from offbeat.envs import check

    findings = check.check_env(
        env,
        env_kwargs=options.env_kwargs,
        env_wrapper=options.env_wrapper,
        max_episode_steps=options.max_episode_steps,
        state_key=options.state_key,
        mask_key=options.mask_key,
        steps=options.steps,
        seed=options.seed,
    )
    for finding in findings:
        _say(f"{finding.severity}: {finding.what}" + (f"; {finding.remedy}" if finding.remedy else ""))
    if not findings:
        _say(f"{env}: nothing wrong found in {options.steps} steps")
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def _run_directory(run: str) -> Path:
    if not Path(run).is_dir():
        raise UsageError(f"RUN={run!r} is not a directory; give the directory of a run, as `run: PATH` named it")
    return Path(run)


@dataclass(frozen=True)
class Command:
    """A command with one positional word: what it says of itself, its options, and the handler of both."""

    word: str
    description: str
    options: type
    handler: Callable[[str, Any], int]


TRAIN_DESCRIPTION = "Trains an agent."
TRAINING = {"train": _train, "resume": _resume}
"""Commands whose flags depend on an algorithm."""
COMMANDS = {
    "eval": Command("RUN", "Evaluates a run's policy, acting deterministically.", EvalOptions, _eval),
    "play": Command("RUN", "Plays a run's policy in a window, or to a video without a display.", PlayOptions, _play),
    "digest": Command("RUN", "Prints one SHA-256 over the content of a checkpoint.", DigestOptions, _digest),
    "trace": Command("RUN", "Says where the time of a run went that was trained with --trace.", TraceOptions, _trace),
    "check-env": Command("ENV", "Says in words what is wrong with an environment.", CheckEnvOptions, _check_env),
}


def _help() -> str:
    rows = [("train ALGO", TRAIN_DESCRIPTION), ("resume RUN", RESUME_DESCRIPTION)]
    rows += [(f"{name} {command.word}", command.description) for name, command in COMMANDS.items()]
    listing = "\n".join(f"  {usage:<16}{description}" for usage, description in rows)
    return (
        "usage: offbeat COMMAND [OPTIONS]\n\nOff-policy and asynchronous reinforcement learning.\n\n"
        f"{listing}\n\n"
        "Flags: offbeat COMMAND --help; algorithms: offbeat train --help; version: offbeat --version\n"
        "Exit codes: 0 done, 2 wrong use, 1 anything else; --debug adds the traceback of an error."
    )


def _dispatch(argv: Sequence[str]) -> int:
    names = [*TRAINING, *COMMANDS]
    if not argv:
        raise UsageError(f"no command given; there is {', '.join(names)}; see offbeat --help")
    name, argv = argv[0], argv[1:]
    if name in ("-h", "--help"):
        _say(_help())
        return 0
    if name == "--version":
        _say(f"offbeat {__version__}")
        return 0
    if name in TRAINING:
        return TRAINING[name](argv)
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}; there is {', '.join(names)}{suggestion(name, names)}")
    command = COMMANDS[name]
    settings = settings_of(command.options)
    if wants_help(argv):
        with _reader_may_leave(sys.stdout):
            show_help(name, command.description, {"": settings}, {}, command.word)
        return 0
    word, given = parse(name, argv, {"": settings}, command.word)
    return command.handler(word, make(command.options, read(settings, given, flag)))


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0 done, 2 wrong use, 1 anything else."""
    occupy_standard()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch([word for word in words if word != "--debug"])
    except (Exception, KeyboardInterrupt) as error:
        message, code = _explain(error)
        _complain(message, with_traceback="--debug" in words)
    try:
        with _reader_may_leave(sys.stdout):  # whatever else wrote there (a console, an environment) may have failed
            pass
    except OffbeatError as error:
        _complain(str(error))
        code = code or error.exit_code
    if argv is None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C sent twice would change the exit code of a saved run
    return code


def _complain(message: str, with_traceback: bool = False) -> None:
    lines = (line.strip() for line in message.splitlines())
    with suppress(OffbeatError), _reader_may_leave(sys.stderr):  # nobody is left to tell
        if with_traceback:
            traceback.print_exc()
        print("offbeat: error: " + " ".join(line for line in lines if line), file=sys.stderr)


def _say(text: str) -> None:
    with _reader_may_leave(sys.stdout, text):
        print(text)


@contextmanager
def _reader_may_leave(stream: TextIO | None, text: str = "") -> Iterator[None]:
    """Writes, flushed, to a stream whose reader may be gone (`| head`, a closed terminal): that is no error.

    Anything else that keeps it from being written (a full disk) is one, in words. What is left in the stream then goes
    nowhere, also when the interpreter flushes it at its end.
    """
    if stream is None:  # closed from the beginning (`>&-`), and print knows it
        yield
        return
    try:
        yield
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise OffbeatError(
                f"the output cannot be written ({error.strerror}); send it somewhere with room"
                + (f". It ends with: {text}" if text and "\n" not in text else "")
            ) from error


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, OffbeatError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 1
    return f"{type(error).__name__}: {error} (unexpected; --debug shows where it was raised)", 1
