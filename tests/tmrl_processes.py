"""Runs examples/coming_from_tmrl.py in processes whose server, trainer and workers meet in a directory of the test."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import commands

EXAMPLE = Path(__file__).parents[1] / "examples" / "coming_from_tmrl.py"


def start(directory: Path, name: str, arguments: Sequence[str]) -> BaseProcess:
    """Starts the example in `directory`; its output goes to the file `name` there."""
    process: BaseProcess = commands._forked.Process(target=_run, args=(directory, name, list(arguments)))
    process.start()
    return process


def run(directory: Path, arguments: Sequence[str]) -> str:
    """The output of the example, which must succeed."""
    code = commands.finish(start(directory, "output", arguments))
    printed = (directory / "output").read_text()
    assert code == 0, printed
    return printed


def _run(directory: Path, name: str, arguments: list[str]) -> None:
    tempfile.tempdir = str(directory)
    multiprocessing.set_start_method("fork", force=True)  # the example's parts inherit the directory
    commands._run_in(directory, EXAMPLE, arguments, directory / name)
