"""A run's directory: its name, its lock, and the small files that say how it stands."""

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
from offbeat.errors import OffbeatError, UsageError
from offbeat.run.lock import RunLock
from offbeat.settings import write_yaml

HEARTBEAT_SECONDS = 2.0


class RunDirectory:
    """One run on disk. At most one process holds its lock; the lock goes with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RunLock(path)
        self._next_heartbeat = 0.0

    @classmethod
    def create(cls, config: Config, versions: dict[str, str]) -> RunDirectory:
        """A new directory OUT/NAME, with config.yaml in it. Never an existing one; all of it is made, or nothing."""
        out, name = Path(config.run.out), config.run.name
        if name is not None and (name in ("", ".", "..") or any(separator in name for separator in "/\\")):
            raise UsageError(
                f"name={name!r} is not the name of one directory, but the run is exactly OUT/NAME: use a plain name; "
                "folders above the run belong into out"
            )
        try:
            path = _fresh(out, config) if name is None else _make(out / name)
        except FileExistsError as error:
            path = Path(error.filename)
            raise UsageError(
                f"{path} exists already: choose another --name, or go on with `offbeat resume {path}`"
            ) from error
        except OSError as error:
            raise UsageError(
                f"out={str(out)!r} cannot hold a run: {error.filename} cannot be made ({error.strerror}); choose a "
                "directory that is there and may be written to, or one that can be made"
            ) from error
        directory = cls(path)
        try:
            directory.record(config, versions)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise UsageError(
                f"out={str(out)!r} cannot hold a run: its config.yaml cannot be written ({error.strerror}); choose a "
                "directory with room that may be written to"
            ) from error
        return directory

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise UsageError(
                f"{path} is not a run: it has no config.yaml; give the directory that `offbeat train` printed"
            )
        return cls(path)

    def record(self, config: Config, versions: dict[str, str]) -> None:
        """Writes config.yaml: what the run was made from."""
        durable.write_file(self.path / "config.yaml", write_yaml(config, versions).encode())

    def lock(self) -> None:
        """Takes the run for this process, or says who has it."""
        self._lock.take()

    def unlock(self) -> None:
        self._lock.release()

    def status(self, state: str, others: Callable[[], list[dict[str, Any]]] = list, *, force: bool = False) -> None:
        """Writes status.json, at most every two seconds unless forced. others: the run's other processes."""
        now = time.monotonic()
        if not force and now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_SECONDS
        mine = {"pid": os.getpid(), "state": state, "heartbeat": time.time()}
        self._write("status.json", {**mine, "processes": [{"name": "learner", **mine}, *others()]})

    def summary(self, values: dict[str, Any]) -> None:
        self._write("summary.json", values)

    def mark_failed(self) -> None:
        """Where there is no room for a new summary.json: changes the status in the one that is there, in its place."""
        running, failed = b'"status": "running"', b'"status": "failed" '
        with contextlib.suppress(OSError, ValueError):  # the error that ended the run is the one to be told
            descriptor = durable.open_regular(self.path / "summary.json", os.O_RDWR)
            try:
                os.pwrite(descriptor, failed, os.pread(descriptor, 1 << 20, 0).index(running))
            finally:
                os.close(descriptor)

    def _write(self, name: str, values: dict[str, Any]) -> None:
        # Not synced: it is news, not state.
        durable.write_file(self.path / name, f"{json.dumps(values, indent=2)}\n".encode(), sync=False)

    def log(self, text: str) -> None:
        descriptor = durable.open_regular(self.path / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")


def _fresh(out: Path, config: Config) -> Path:
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", config.run.env or "environment").strip("-.")
    stem = f"{config.algorithm}-{env}-{config.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in range(1_000):
        with contextlib.suppress(FileExistsError):
            return _make(out / (f"{stem}-{attempt + 1}" if attempt else stem))
    raise OffbeatError(f"{out} holds a thousand runs named {stem}; give this one a --name")


def _make(path: Path) -> Path:
    """Makes a new directory and those above it, or none of them."""
    above = []
    try:
        for each in reversed(path.parents):
            if not each.exists():
                each.mkdir(exist_ok=True)  # another run may make it at the same time
                above.append(each)
        path.mkdir()
    except OSError:
        for each in reversed(above):
            with contextlib.suppress(OSError):  # the other run is in it
                each.rmdir()
        raise
    return path
