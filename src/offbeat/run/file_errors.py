"""What the operating system refuses to a run (a full disk, a directory that is gone), in words with a remedy."""

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
def in_words(run: Path | None = None) -> Iterator[None]:
    """Raises an OffbeatError in place of an OSError that has a remedy. run: the directory, once there is one."""
    try:
        yield
    except OSError as error:
        words = explain(error, run)
        if words is None:
            raise
        raise OffbeatError(words) from error


def explain(error: OSError, run: Path | None) -> str | None:
    """What happened and what to do; None where that is not known."""
    if error.errno in TOO_MANY:
        return (
            f"too many open files: this process may have {_most_files()} at a time, and every collector and file of a "
            "run takes some; raise the limit (ulimit -n 4096), or use fewer collectors"
        )
    if run is None:
        return None
    if not run.exists():
        return f"{run} was removed while the run used it: nothing of it is left to go on with; train again"
    go_on = f"go on with `offbeat resume {run}`" if (run / "checkpoints" / "latest").exists() else "train again"
    if error.errno in FULL:
        return f"the disk of {run} is full ({error.strerror}); free some space and {go_on}"
    if error.errno in REFUSED:
        where = error.filename if isinstance(error.filename, str) else run
        return f"{where} cannot be written ({error.strerror}); make the files of {run} writable and {go_on}"
    return None


def _most_files() -> int | str:
    try:
        import resource
    except ImportError:  # Windows
        return "a limited number"
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
