"""A run's directory: its name, its lock, config.yaml, status.json, summary.json and log.txt."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.algorithms.configs import Config
from offbeat.algorithms.registry import find
from offbeat.errors import OffbeatError, UsageError
from offbeat.run.lock import RunLock
from offbeat.settings import flatten, recorded_yaml

HEARTBEAT_SECONDS = 2.0
FILES_OF_A_RUN = {
    *(".lock", "config.yaml", "metrics.jsonl", "evaluations.jsonl", "summary.json", "status.json", "log.txt"),
    *("checkpoints", "replay", "policy", "tensorboard", "wandb", "videos", "trace.json"),
}
"""What Offbeat itself puts into a run's directory."""


class RunDirectory:
    """One run on disk. At most one process holds its lock, and the lock ends with that process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RunLock(path)
        self._next_heartbeat = 0.0

    @classmethod
    def create(cls, config: Config, versions: dict[str, str]) -> RunDirectory:
        """Creates the directory OUT/NAME with config.yaml. It must not exist; after an error, nothing is left."""
        out, name = Path(config.run.output.out), config.run.output.name
        if name is not None and (name in ("", ".", "..") or any(separator in name for separator in "/\\")):
            raise UsageError(
                f"name={name!r} is not a plain directory name, but the run's directory is OUT/NAME: use a plain name, "
                "and put parent directories into out"
            )
        try:
            path = _make_default(out, config) if name is None else _make(out / name)
        except FileExistsError as error:
            path = Path(error.filename)
            raise UsageError(
                f"{path} exists already: choose another --name, or resume it with `offbeat resume {path}`"
            ) from error
        except OSError as error:
            raise UsageError(
                f"out={str(out)!r} cannot hold a run: {error.filename} cannot be created ({error.strerror}); choose a "
                "directory that is writable or can be created"
            ) from error
        directory = cls(path)
        try:
            directory.write_config(config, versions)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise UsageError(
                f"out={str(out)!r} cannot hold a run: its config.yaml cannot be written ({error.strerror}); choose a "
                "writable directory with free space"
            ) from error
        return directory

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise UsageError(
                f"{path} is not a run: it has no config.yaml; pass the directory that `offbeat train` printed"
            )
        return cls(path)

    def write_config(self, config: Config, versions: dict[str, str]) -> None:
        """Writes config.yaml: the settings of the run and the versions of the packages."""
        self.write_recorded(flatten(config), versions)

    def write_recorded(self, recorded: dict[str, Any], versions: dict[str, str]) -> None:
        """As `write_config`, from the settings in a checkpoint's notes."""
        durable.write_file(self.path / "config.yaml", recorded_yaml(recorded, versions).encode())

    def lock(self) -> None:
        """Takes the lock for this process; RunBusyError names the process that holds it."""
        self._lock.take()

    def unlock(self) -> None:
        self._lock.release()

    def write_status(
        self, state: str, others: Callable[[], list[dict[str, Any]]] = list, *, force: bool = False
    ) -> None:
        """Writes status.json, at most every two seconds unless `force`. others: returns the run's other processes."""
        now = time.monotonic()
        if not force and now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_SECONDS
        learner = {"pid": os.getpid(), "state": state, "heartbeat": time.time()}
        self._write("status.json", {**learner, "processes": [{"name": "learner", **learner}, *others()]})

    def write_summary(self, values: dict[str, Any]) -> None:
        self._write("summary.json", values)

    def mark_failed(self) -> None:
        """On a full disk, where no new summary.json can be written: overwrites the status inside the existing file."""
        running, failed = b'"status": "running"', b'"status": "failed" '
        with contextlib.suppress(OSError, ValueError):  # the error that ended the run matters more
            descriptor = durable.open_regular(self.path / "summary.json", os.O_RDWR)
            try:
                os.pwrite(descriptor, failed, os.pread(descriptor, 1 << 20, 0).index(running))
            finally:
                os.close(descriptor)

    def _write(self, name: str, values: dict[str, Any]) -> None:
        # Not synced: these files inform the user, and resuming does not read them.
        durable.write_file(self.path / name, f"{json.dumps(values, indent=2)}\n".encode(), sync=False)

    def log(self, text: str) -> None:
        descriptor = durable.open_regular(self.path / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")


def _make_default(out: Path, config: Config) -> Path:
    """Makes a directory with a name from the algorithm, environment, seed and time."""
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", config.run.environment.env or "environment").strip("-.")
    stem = f"{find(config.algorithm).name}-{env}-{config.run.start.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in range(1_000):
        with contextlib.suppress(FileExistsError):
            return _make(out / (f"{stem}-{attempt + 1}" if attempt else stem))
    raise OffbeatError(f"{out} holds a thousand runs named {stem}; choose a --name")


def _make(path: Path) -> Path:
    """Makes a new directory and its missing parents; after an error, none of them is left."""
    created = []
    try:
        for each in reversed(path.parents):
            if not each.exists():
                each.mkdir(exist_ok=True)  # another run may make it at the same time
                created.append(each)
        path.mkdir()
    except OSError:
        for each in reversed(created):
            with contextlib.suppress(OSError):  # another run uses it
                each.rmdir()
        raise
    return path
