"""Starts the learner processes of `--learners K` as torchrun does, by its own launcher."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from offbeat.learn.torch_ranks import check_available
from offbeat.ranks import END_NOTE, LAUNCHER

SECONDS_TO_SAVE = 600
"""Ranks that are asked to stop get this long to write a checkpoint, before they are killed."""


def launch(learners: int, words: Sequence[str]) -> int:
    """Runs the command `offbeat WORDS` in so many processes, as ranks of one job; returns its exit code."""
    check_available()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [each for each in logging.root.manager.loggerDict if each.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # ranks say themselves what is wrong
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=learners,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        shutdown_timeout=SECONDS_TO_SAVE,
    )
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "clean"
        os.environ |= {END_NOTE: str(note), LAUNCHER: str(os.getpid())}
        try:
            elastic_launch(config, sys.executable)("-m", "offbeat", *words)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            return failure.exitcode if failure.exitcode > 0 else 1
        except SignalException:
            return 0 if note.exists() else 1  # the launcher does not tell how ranks ended after a signal
        finally:
            del os.environ[END_NOTE], os.environ[LAUNCHER]
    return 0
