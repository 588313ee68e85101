"""JSON-lines logs: one object per line, readable during the run, and truncated to the checkpoint on resume."""

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
    """Appends objects to a file. `sync` returns the length for a checkpoint; `truncate` goes back to that length."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(durable.open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b", 0)

    def write(self, record: Mapping[str, Any]) -> None:
        """Writes one line, unbuffered. NaN and infinity become null, because JSON does not have them."""
        line = json.dumps(_plain(record), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        rest = memoryview(line.encode() + b"\n")
        while rest:  # unbuffered, so that after a full disk `close` has nothing left to write
            rest = rest[self._file.write(rest) :]

    def sync(self) -> int:
        """Waits until every line is on disk; returns the file's length in bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, length: int) -> bool:
        """Drops every byte after `length`; returns whether the file now has exactly that length.

        False means that the file was moved, shortened or changed; its complete lines up to `length` are kept.
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
    """The objects of all complete lines, in order; an incomplete last line is left out."""
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
    """Converts a value for `json`: NumPy scalars and arrays to numbers and lists, NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
