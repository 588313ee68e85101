"""The command `offbeat`: dispatch, output and exit codes. Handlers import heavy libraries only after all checks."""

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
from typing import Any, Literal, TextIO

from offbeat import __version__
from offbeat.algorithms.configs import Reference
from offbeat.algorithms.configs.run import Environment
from offbeat.algorithms.registry import ALGORITHMS, find
from offbeat.coercion import suggestion
from offbeat.descriptors import occupy_standard
from offbeat.errors import OffbeatError, RunInterrupted, UsageError
from offbeat.flags import flag, parse, show_help, wants_help
from offbeat.ranges import setting
from offbeat.ranks import END_NOTE, LAUNCHER, RankFault, place
from offbeat.settings import read, settings_of
from offbeat.training_commands import (
    DEBUG,
    RESUME_DESCRIPTION,
    read_resume,
    read_train,
    recorded_learners,
    show_resume_help,
    show_train_help,
)

CHECKPOINT_HELP = "Checkpoint to load: latest, best, or its name under checkpoints/."
SEED_HELP = "Seed of the episodes; none uses the seed of the run."
ENV_KWARGS_HELP = "Environment arguments, as key=value, that override those of the run; 'none' passes no arguments."


def _same_as_train(name: str) -> Any:
    """A copy of a field of the run: same default, help text and range as the flag of `train`."""
    one = Environment.__dataclass_fields__[name]
    return dataclasses.field(default=one.default, default_factory=one.default_factory, metadata=one.metadata)


@dataclass(frozen=True)
class EvalOptions:
    episodes: int = setting(20, "Number of episodes to evaluate.", at_least=1)
    video: bool = setting(False, "Record a video of the first episode.")
    checkpoint: str = setting("latest", CHECKPOINT_HELP)
    seed: int | None = setting(None, SEED_HELP, at_least=0)
    env: str | None = setting(None, "Another environment with the same spaces: Gymnasium id, or module:factory.")
    env_kwargs: Mapping[str, Any] = setting(None, ENV_KWARGS_HELP)
    env_wrapper: Reference | None = setting(None, "module:callable that replaces the wrapper of the run.")
    max_episode_steps: int | None = setting(
        None, "Truncate episodes after so many steps; none: as in the run.", at_least=1
    )


@dataclass(frozen=True)
class PlayOptions:
    episodes: int = setting(5, "Number of episodes to play.", at_least=1)
    checkpoint: str = setting("latest", CHECKPOINT_HELP)
    seed: int | None = setting(None, SEED_HELP, at_least=0)


@dataclass(frozen=True)
class DigestOptions:
    checkpoint: str = setting("latest", CHECKPOINT_HELP)


@dataclass(frozen=True)
class ConvertOptions:
    backend: Literal["torch", "jax"] | None = setting(None, "What the learner is to compute with from now on.")


@dataclass(frozen=True)
class CheckEnvOptions:
    env_kwargs: Mapping[str, Any] = _same_as_train("env_kwargs")
    env_wrapper: Reference | None = _same_as_train("env_wrapper")
    max_episode_steps: int | None = _same_as_train("max_episode_steps")
    state_key: str | None = _same_as_train("state_key")
    mask_key: str | None = _same_as_train("mask_key")
    steps: int = setting(500, "Number of steps with random actions.", at_least=1)
    seed: int = setting(0, "Seed of the resets and of the random actions.", at_least=0)


def _train(argv: Sequence[str]) -> int:
    algorithms = "\n".join(f"  {name:<8}{each.description}" for name, each in ALGORITHMS.items())
    if argv and wants_help(argv[:1]):
        _print(f"usage: offbeat train ALGO [OPTIONS]\n\n{algorithms}\n\nFlags: offbeat train ALGO --help")
        return 0
    if not argv or argv[0].startswith("-"):
        raise UsageError(
            f"offbeat train needs an algorithm as its first argument; give one of {', '.join(ALGORITHMS)}, or "
            "your own as module:thing, for example offbeat train sac --env Pendulum-v1"
        )
    algorithm, argv = argv[0], argv[1:]
    find(algorithm)
    if wants_help(argv):
        with _ignore_closed_pipe(sys.stdout):
            show_train_help(algorithm, argv)
        return 0
    config = read_train(algorithm, argv)
    if config.run.compute.learners > 1 and place().size == 1:
        return _launch(config.run.compute.learners, ["train", algorithm, *argv])
    from offbeat.run import api

    return _run_training(lambda: api.train_config(config))


def _resume(argv: Sequence[str]) -> int:
    if wants_help(argv):
        with _ignore_closed_pipe(sys.stdout):
            show_resume_help(argv)
        return 0
    run, checkpoint, changes = read_resume(argv)
    path = _run_directory(run)
    learners = changes.get("learners", recorded_learners(path))
    if learners > 1 and place().size == 1:
        return _launch(learners, ["resume", *argv])
    from offbeat.run import api

    return _run_training(lambda: api.resume(path, checkpoint=checkpoint, **changes))


def _launch(learners: int, words: Sequence[str]) -> int:
    """Runs the same command in several processes, which are the ranks of one run."""
    from offbeat.learn.torch_launch import launch

    return launch(learners, words)


def _run_training(training: Callable[[], Any]) -> int:
    """Trains and prints the path of the run. A run that a signal stopped cleanly counts as success."""
    launcher, note = (os.environ.pop(name, None) for name in (LAUNCHER, END_NOTE))  # not for what this one starts
    if launcher is not None and place().size > 1:
        from offbeat.collect.children import end_with

        end_with(int(launcher), signal.SIGTERM)  # a launcher that is killed cannot stop its learners
    try:
        result = training()
    except RunInterrupted as interrupted:
        result = interrupted.result
    if place().rank:
        return 0  # the first rank prints the path
    if note is not None:
        Path(note).touch()
    _print(f"run: {result.path}")
    return 0


def _eval(run: str, **options: Any) -> int:
    path = _run_directory(run)
    from offbeat.run import saved_policy

    result = saved_policy.evaluate(path, **options)
    _print(f"return: {result.mean_return:.2f} (std {result.std_return:.2f}) over {result.episodes} episodes")
    _print(f"length: {result.mean_length:.1f}")
    if result.success_rate is not None:
        _print(f"success: {result.success_rate:.2f}")
    if result.video is not None:
        _print(f"video: {result.video}")
    return 0


def _play(run: str, **options: Any) -> int:
    path = _run_directory(run)
    from offbeat.run import play

    play.play_run(path, **options, report=_print)
    return 0


def _digest(run: str, checkpoint: str) -> int:
    path = _run_directory(run)
    from offbeat.run.checkpoint import digest

    _print(digest(path, checkpoint))
    return 0


def _convert(run: str, backend: str | None) -> int:
    if backend is None:
        raise UsageError("offbeat convert needs the new backend; give --backend jax or --backend torch")
    path = _run_directory(run)
    from offbeat.run.convert import convert

    done = convert(path, backend=backend)
    if done.before == backend:
        _print(f"backend: {backend} already, at step {done.step:,}; nothing was converted")
    else:
        _print(f"backend: {backend}, from {done.before}, at step {done.step:,}; go on with: offbeat resume {path}")
    _print(f"run: {path}")
    return 0


def _trace(run: str) -> int:
    path = _run_directory(run) / "trace.json"
    if not path.is_file():
        raise UsageError(f"RUN={run!r} has no trace.json: it was trained without --trace; train with --trace")
    from offbeat.observe import trace_summary

    _print(f"{trace_summary.text(path)}\n\ntrace: {path} (open it in ui.perfetto.dev or chrome://tracing)")
    return 0


def _check_env(env: str, **options: Any) -> int:
    from offbeat.envs import check

    findings = check.check_env(env, **options)
    for finding in findings:
        _print(f"{finding.severity}: {finding.what}" + (f"; {finding.remedy}" if finding.remedy else ""))
    if not findings:
        _print(f"{env}: no problems found in {options['steps']} steps")
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def _run_directory(run: str) -> Path:
    if not Path(run).is_dir():
        raise UsageError(f"RUN={run!r} is not a directory; give the PATH that training printed as `run: PATH`")
    return Path(run)


@dataclass(frozen=True)
class Command:
    """A command with one positional argument.

    argument: the name of the argument in the help. options: a dataclass of its flags, or None. handler: called with the
    argument and, by name, the values of the flags.
    """

    argument: str
    description: str
    options: type | None
    handler: Callable[..., int]


TRAIN_DESCRIPTION = "Train an agent."
TRAINING = {"train": _train, "resume": _resume}
"""Commands whose flags depend on an algorithm."""
COMMANDS = {
    "eval": Command("RUN", "Evaluate the policy of a run with deterministic actions.", EvalOptions, _eval),
    "play": Command(
        "RUN", "Show the policy of a run in a window, or record a video without a display.", PlayOptions, _play
    ),
    "digest": Command("RUN", "Print a SHA-256 digest of the content of a checkpoint.", DigestOptions, _digest),
    "convert": Command("RUN", "Move a run to the other backend, torch or jax.", ConvertOptions, _convert),
    "trace": Command("RUN", "Summarise the trace of a run that was trained with --trace.", None, _trace),
    "check-env": Command("ENV", "Test an environment and report its problems.", CheckEnvOptions, _check_env),
}


def _help() -> str:
    rows = [("train ALGO", TRAIN_DESCRIPTION), ("resume RUN", RESUME_DESCRIPTION)]
    rows += [(f"{name} {command.argument}", command.description) for name, command in COMMANDS.items()]
    listing = "\n".join(f"  {usage:<16}{description}" for usage, description in rows)
    return (
        "usage: offbeat COMMAND [OPTIONS]\n\nOff-policy and asynchronous reinforcement learning.\n\n"
        f"{listing}\n\n"
        "Flags: offbeat COMMAND --help; algorithms: offbeat train --help; version: offbeat --version\n"
        "Exit codes: 0 success, 2 usage error, 1 any other error. --debug prints the traceback of an error."
    )


def _dispatch(argv: Sequence[str]) -> int:
    names = [*TRAINING, *COMMANDS]
    if not argv:
        raise UsageError(f"no command given; use one of {', '.join(names)}; see offbeat --help")
    name, argv = argv[0], argv[1:]
    if name in ("-h", "--help"):
        _print(_help())
        return 0
    if name == "--version":
        _print(f"offbeat {__version__}")
        return 0
    if name in TRAINING:
        return TRAINING[name](argv)
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name!r}; use one of {', '.join(names)}{suggestion(name, names)}")
    command = COMMANDS[name]
    own = settings_of(command.options) if command.options else ()
    settings = (*own, DEBUG)
    if wants_help(argv):
        with _ignore_closed_pipe(sys.stdout):
            show_help(name, command.description, {"": settings}, {}, command.argument)
        return 0
    argument, given = parse(name, argv, {"": settings}, command.argument)
    values = read(settings, given, flag)
    return command.handler(argument, **{each.name: values.get(each.name, each.default) for each in own})


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0 success, 2 usage error, 1 any other error."""
    occupy_standard()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch([word for word in words if word != "--debug"])
    except (Exception, KeyboardInterrupt) as error:
        message, code = _message_and_code(error)
        rank = _rank()
        if not (isinstance(error, UsageError) and rank):  # the first rank says the same
            who = f"learner rank {rank}: " if rank and not isinstance(error, RankFault) else ""
            _print_error(who + message, with_traceback="--debug" in words)
    try:
        with _ignore_closed_pipe(sys.stdout):  # flush what the console or an environment wrote
            pass
    except OffbeatError as error:
        _print_error(str(error))
        code = code or error.exit_code
    if argv is None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not change the exit code of a saved run
    return code


def _rank() -> int:
    """The number of this process among ranks, also where that is what cannot be read."""
    try:
        return place().rank
    except UsageError:
        return 0


def _print_error(message: str, with_traceback: bool = False) -> None:
    lines = (line.strip() for line in message.splitlines())
    with suppress(OffbeatError), _ignore_closed_pipe(sys.stderr):  # standard error itself cannot be written
        if with_traceback:
            traceback.print_exc()
        print("offbeat: error: " + " ".join(line for line in lines if line), file=sys.stderr)


def _print(text: str) -> None:
    with _ignore_closed_pipe(sys.stdout, text):
        print(text)


@contextmanager
def _ignore_closed_pipe(stream: TextIO | None, text: str = "") -> Iterator[None]:
    """Flushes `stream` after the block, and ignores a closed pipe or terminal (`| head`).

    text: what the block prints, quoted in the error. Any other failure, such as a full disk, raises OffbeatError.
    After a failure the stream is redirected to the null device, so that the interpreter's own flush at exit succeeds.
    """
    if stream is None:  # the command was started with the stream closed (`>&-`); print() then does nothing
        yield
        return
    try:
        yield
        stream.flush()
    except OSError as error:
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, stream.fileno())
        os.close(null_device)
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise OffbeatError(
                f"cannot write the output ({error.strerror}); redirect it to a place with free space"
                + (f". The last line was: {text}" if text and "\n" not in text else "")
            ) from error


def _message_and_code(error: BaseException) -> tuple[str, int]:
    if isinstance(error, OffbeatError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 1
    return f"{type(error).__name__}: {error} (unexpected; --debug prints the traceback)", 1
