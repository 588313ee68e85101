"""Runs commands and scripts in separate processes; a command can be sent a signal at a chosen update."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import patience

# A fork of a server process that has already imported torch and JAX starts at once. A fork of the test process would
# inherit its threads and signal handlers.
_forked, _fresh = multiprocessing.get_context("forkserver"), multiprocessing.get_context("spawn")
_forked.set_forkserver_preload(["torch", "jax", "offbeat.cli", "offbeat.run.api", "offbeat.observe.tensorboard"])


def start(
    arguments: Sequence[str], output: Path, number: int | None = None, at: int = 0, *, fresh: bool = False
) -> BaseProcess:
    """Starts `offbeat ARGUMENTS`, whose output goes to a file.

    number: the signal that the process sends to itself after `at` updates. fresh: spawn a new interpreter, which shares
    nothing with other commands (for example not the hash seed).
    """
    context: Any = _fresh if fresh else _forked
    process: BaseProcess = context.Process(target=_main, args=(list(arguments), output, number, at))
    process.start()
    return process


def finish(process: BaseProcess) -> int | None:
    process.join(patience.SECONDS)
    code = process.exitcode
    if code is None:
        process.kill()
    return code


def run(arguments: Sequence[str], output: Path, *, fresh: bool = False) -> str:
    """The output of a command that must succeed."""
    code = finish(start(arguments, output, fresh=fresh))
    assert code == 0, output.read_text()
    return output.read_text()


def run_in(directory: Path, script: Path | None, arguments: Sequence[str], expected: int = 0) -> str:
    """The output of `offbeat ARGUMENTS`, or of a script, that runs in a directory."""
    output = directory / "output"
    process: BaseProcess = _forked.Process(target=_run_in, args=(directory, script, list(arguments), output))
    process.start()
    code, printed = finish(process), output.read_text()
    output.unlink()
    assert code == expected, printed
    return printed


def _run_in(directory: Path, script: Path | None, arguments: list[str], output: Path) -> None:
    os.chdir(directory)
    if script is None:
        _main(arguments, output, None, 0)
    else:
        _redirect_to(output)
        sys.argv = [str(script), *arguments]
        sys.path.insert(0, str(script.parent))
        runpy.run_path(str(script), run_name="__main__")


def _redirect_to(output: Path) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)


def _main(arguments: list[str], output: Path, number: int | None, at: int) -> None:
    _redirect_to(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from offbeat.cli import main
    from offbeat.run.training import Training

    learn = Training.learn

    def counted(training: Training, count: int) -> int:
        nonlocal number
        made = learn(training, count)
        if number is not None and training.learner.updates >= at:
            sent, number = number, None
            os.kill(os.getpid(), sent)
        return made

    Training.learn = counted  # type: ignore[method-assign]
    sys.exit(main(arguments))
