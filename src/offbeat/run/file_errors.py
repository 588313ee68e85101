"""Operating system errors of a run (full disk, removed directory) as errors with a remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offbeat.errors import OffbeatError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOO_MANY = (errno.EMFILE, errno.ENFILE)
REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOLCK)


@contextmanager
def explain_os_errors(run: Path | None = None) -> Iterator[None]:
    """Turns an OSError with a known remedy into an OffbeatError. run: the run's directory, if it exists already."""
    try:
        yield
    except OSError as error:
        explanation = explain(error, run)
        if explanation is None:
            raise
        raise OffbeatError(explanation) from error


def explain(error: OSError, run: Path | None) -> str | None:
    """The cause and the remedy; None if the remedy is not known."""
    if error.errno in TOO_MANY:
        return (
            f"too many open files: the limit of this process is {_open_file_limit()}, and every collector and file of "
            "a run needs some; raise the limit (ulimit -n 4096), or use fewer collectors"
        )
    if run is None:
        return None
    if not run.exists():
        return f"{run} was removed during the run, so it cannot be resumed; train again"
    retry = f"resume with `offbeat resume {run}`" if (run / "checkpoints" / "latest").exists() else "train again"
    if error.errno in FULL:
        return f"the disk of {run} is full ({error.strerror}); free some space and {retry}"
    if error.errno in REFUSED:
        where = error.filename if isinstance(error.filename, str) else run
        return f"{where} cannot be written ({error.strerror}); make the files of {run} writable and {retry}"
    return None


def _open_file_limit() -> int | str:
    try:
        import resource
    except ImportError:  # Windows
        return "unknown"
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
