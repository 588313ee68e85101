"""Errors that a user can act on: each message holds the value, the rule and the remedy."""

import traceback
from typing import Any


class OffbeatError(Exception):
    """Anything that Offbeat reports in words; the command prints it without a traceback and exits with `exit_code`."""

    exit_code = 1


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped a run, which has been saved. result: its `RunResult`, as `train` would return it."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class UsageError(OffbeatError, ValueError):
    """A wrong option, key, type or value, found before anything is created."""

    exit_code = 2


class SpaceError(UsageError):
    """An observation or action space that the chosen algorithm cannot take."""


class EnvironmentFault(OffbeatError):
    """An environment raised, or returned what its spaces do not allow."""


class EnvironmentHung(OffbeatError):
    """Raised inside an environment's own code, by a signal handler, when that has not returned for too long."""


class PersistentFault(EnvironmentFault):
    """An environment that faults again and again, however often it is made anew."""


class ProcessFault(OffbeatError):
    """A child process ends again and again without getting anywhere."""


class CallbackFault(OffbeatError):
    """A callback of the user's raised."""


class CheckpointError(OffbeatError):
    """A checkpoint that is missing, damaged, foreign, or does not fit what it is loaded into."""


class RunBusyError(OffbeatError):
    """The run belongs to a process that is still alive."""


def describe(error: BaseException) -> str:
    """The kind and the message of an error of somebody else's code; one without a message is told by its place."""
    kind, message = type(error).__name__, str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if message or not frames:
        return f"{kind}: {message}"
    return f"{kind} at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})"
