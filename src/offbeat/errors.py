"""Errors that a user can act on: each message holds the value, the rule and the remedy."""

import traceback
from typing import Any


class OffbeatError(Exception):
    """Base class of errors with a message for the user; the command prints it without a traceback, then exits."""

    exit_code = 1


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped a run after a checkpoint was saved. result: the `RunResult`, as `train` returns it."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class UsageError(OffbeatError, ValueError):
    """An invalid option, key, type or value, detected before anything is created."""

    exit_code = 2


class SpaceError(UsageError):
    """An observation or action space that the algorithm does not support."""


class EnvironmentFault(OffbeatError):
    """An environment raised an exception, or returned a value that its spaces do not allow."""


class EnvironmentHung(OffbeatError):
    """An environment call exceeded the timeout; a signal handler raises this inside the environment's code."""


class PersistentFault(EnvironmentFault):
    """An environment faulted too many times in a row, although it was recreated."""


class ProcessFault(OffbeatError):
    """A child process crashed too many times in a row without progress."""


class CallbackFault(OffbeatError):
    """A user's callback raised an exception."""


class CheckpointError(OffbeatError):
    """A checkpoint is missing, damaged, from another format, or does not match the run that loads it."""


class RunBusyError(OffbeatError):
    """Another live process is using the run's directory."""


def describe(error: BaseException) -> str:
    """Type and message of an exception from user code; without a message, the file and line that raised it."""
    kind, message = type(error).__name__, str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if message or not frames:
        return f"{kind}: {message}"
    return f"{kind} at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})"
