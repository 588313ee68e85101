"""Logs as JSON lines: one object per line, readable while it is written and exact again after a resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from offbeat import durable
from offbeat.errors import OffbeatError


class Jsonl:
    """Appends objects to a file. `sync` gives the length to store in a checkpoint, `truncate` goes back to it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(durable.open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b", 0)

    def write(self, record: Mapping[str, Any]) -> None:
        """One line, handed to the operating system at once. JSON has no NaN and no infinity: both become null."""
        line = json.dumps(_plain(record), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        rest = memoryview(line.encode() + b"\n")
        while rest:  # unbuffered: on a full disk nothing is kept that closing would try to write again
            rest = rest[self._file.write(rest) :]

    def sync(self) -> int:
        """Waits until every line is on the disk; returns the file's length in bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, length: int) -> bool:
        """Drops every byte after `length`; True where the file now ends exactly there, as when `sync` returned it.

        False where it does not: the file was moved, cut short or changed. The whole lines that are there stay.
        """
        with os.fdopen(os.dup(self._file.fileno()), "rb") as reader:
            reader.seek(0)
            kept = reader.read(length)
        end = kept.rfind(b"\n") + 1
        self._file.truncate(end)
        return end == length

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Jsonl:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path | str) -> list[dict[str, Any]]:
    """Every whole line of a file, in order; a last line that is still being written is left out."""
    records = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise OffbeatError(f"{path}, line {number} is not JSON ({error}); remove that line") from error
    return records


def _plain(value: Any) -> Any:
    """What `json` can write: NumPy scalars and arrays as numbers and lists, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
