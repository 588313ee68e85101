"""The newest model of a trainer, in memory that it shares with the workers; `weights.shared` keeps it whole."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable
from offbeat.memory import Memory
from offbeat.weights.shared import SharedWeights, WeightsLayout

_POINTER = "newest.json"
_ROOM = 1.5
"""Memory is made for files so many times as large as the first, because the size of a saved actor may vary."""


def _layout(room: int) -> WeightsLayout:
    return (("model", "|u1", (room,)), ("length", "<i8", (1,)))


def _mapped(path: Path, room: int, flags: int = 0) -> SharedWeights:
    layout = _layout(room)
    nbytes = SharedWeights.nbytes(layout)
    descriptor = os.open(path, os.O_RDWR | flags, 0o600)
    try:
        if flags:
            os.ftruncate(descriptor, nbytes)
        return SharedWeights(layout, Memory(descriptor, nbytes).map())
    finally:
        os.close(descriptor)


class ModelPublisher:
    """The trainer's side. A model is the content of one file. Where one needs more room, it gets other memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._room = self._before = 0
        self._shared: SharedWeights | None = None
        if (old := _pointer(directory)) is not None:  # of a trainer before this one
            with contextlib.suppress(FileNotFoundError):
                self._before = old["before"] + _mapped(directory / old["file"], old["room"]).count

    def publish(self, model: bytes) -> None:
        if self._shared is None or len(model) > self._room:
            self._move(int(len(model) * _ROOM))
        assert self._shared is not None
        padded = np.zeros(self._room, np.uint8)
        padded[: len(model)] = np.frombuffer(model, np.uint8)
        self._shared.publish(self._before + self._shared.count + 1, {"model": padded, "length": np.array([len(model)])})

    def _move(self, room: int) -> None:
        """Begins other memory, to which the pointer shows from now on; readers keep the old one while they read."""
        self._before += 0 if self._shared is None else self._shared.count
        old = _pointer(self._directory)
        name = f"model-{self._before}-{os.getpid()}"
        durable.remove(self._directory / name)
        self._shared, self._room = _mapped(self._directory / name, room, os.O_CREAT | os.O_EXCL), room
        text = json.dumps({"file": name, "room": room, "before": self._before})
        durable.write_file(self._directory / _POINTER, text.encode(), sync=False)
        if old is not None:
            durable.remove(self._directory / old["file"])


def _pointer(directory: Path) -> Any:
    try:
        return json.loads(durable.read_file(directory / _POINTER))
    except FileNotFoundError:
        return None


class ModelReader:
    """A worker's side. A worker that connects later gets the newest model, as one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file, self._before = "", 0
        self._shared: SharedWeights | None = None
        self._seen = max(0, self._total() - 1)

    def _total(self) -> int:
        """The number of models that were ever published."""
        pointer = _pointer(self._directory)
        if pointer is None:
            return 0
        if pointer["file"] != self._file:
            with contextlib.suppress(FileNotFoundError):  # replaced since the pointer was read; the next call finds it
                self._shared = _mapped(self._directory / pointer["file"], pointer["room"])
                self._file, self._before = pointer["file"], pointer["before"]
        return self._before + (0 if self._shared is None else self._shared.count)

    def receive(self) -> tuple[int, bytes]:
        """How many models were published since the last call, and the newest one, b"" if there was none."""
        total = self._total()
        new = max(0, total - self._seen)
        if not new or self._shared is None or not self._shared.count:
            return 0, b""
        publication = self._shared.newest()
        self._seen = total
        length = int(publication.weights["length"][0])
        return new, publication.weights["model"][:length].tobytes()
