"""A run's directory: its name, its lock, and the small files that say how it stands."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from offbeat import durable
from offbeat.algorithms.configs import Config
from offbeat.errors import OffbeatError, RunBusyError, UsageError
from offbeat.settings import write_yaml

HEARTBEAT_SECONDS = 2.0


class RunDirectory:
    """One run on disk. At most one process holds its lock; the lock goes with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._next_heartbeat = 0.0

    @classmethod
    def create(cls, config: Config, versions: dict[str, str]) -> RunDirectory:
        """A new directory OUT/NAME, with config.yaml in it. Never an existing one."""
        out, name = Path(config.run.out), config.run.name
        if name is not None:
            path = out / name
            if path.exists():
                raise UsageError(f"{path} exists already: choose another --name, or go on with `offbeat resume {path}`")
            path.mkdir(parents=True)
        else:
            path = _fresh(out, config)
        durable.write_file(path / "config.yaml", write_yaml(config, versions).encode())
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise UsageError(
                f"{path} is not a run: it has no config.yaml; give the directory that `offbeat train` printed"
            )
        return cls(path)

    def lock(self) -> None:
        """Takes the run for this process, or says who has it."""
        handle = os.open(self.path, os.O_RDONLY) if os.name == "posix" else None
        if handle is not None:
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise RunBusyError(
                    f"{self.path} is running in process {self._owner()}: wait for it, or stop it (kill PID)"
                ) from None
        elif self._owner_is_alive():
            raise RunBusyError(f"{self.path} is running in process {self._owner()}: wait for it, or stop it")
        self._lock = handle

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _owner(self) -> Any:
        try:
            return json.loads((self.path / "status.json").read_text())["pid"]
        except (OSError, ValueError, KeyError):
            return "unknown"

    def _owner_is_alive(self) -> bool:
        """Where directories cannot be locked: whether the process that last wrote status.json still beats."""
        try:
            status = json.loads((self.path / "status.json").read_text())
        except (OSError, ValueError):
            return False
        return status["state"] == "running" and time.time() - status["heartbeat"] < 10 * HEARTBEAT_SECONDS

    def status(self, state: str, *, force: bool = False) -> None:
        """Writes status.json, at most every two seconds unless forced."""
        now = time.monotonic()
        if not force and now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_SECONDS
        process = {"name": "learner", "pid": os.getpid(), "state": state, "heartbeat": time.time()}
        self._write(
            "status.json", {"pid": os.getpid(), "state": state, "heartbeat": time.time(), "processes": [process]}
        )

    def summary(self, values: dict[str, Any]) -> None:
        self._write("summary.json", values)

    def _write(self, name: str, values: dict[str, Any]) -> None:
        # Replaced, so that a reader sees a whole file; not synced: it is news, not state.
        aside = self.path / f".{name}"
        aside.write_text(json.dumps(values, indent=2) + "\n")
        os.replace(aside, self.path / name)

    def log(self, text: str) -> None:
        with (self.path / "log.txt").open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")


def _fresh(out: Path, config: Config) -> Path:
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", config.run.env or "environment").strip("-.")
    stem = f"{config.algorithm}-{env}-{config.run.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    out.mkdir(parents=True, exist_ok=True)
    for attempt in range(1_000):
        path = out / (f"{stem}-{attempt + 1}" if attempt else stem)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise OffbeatError(f"{out} holds a thousand runs named {stem}; give this one a --name")
