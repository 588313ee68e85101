"""Append-only files of a shard's rows, so that a save writes only new rows.

A segment is a file of chunk records. A checkpoint lists the segments that cover its ring, each with a length and the
hash of that many bytes. A file may grow later; the checkpoint ignores bytes past the listed length. Bytes that a kept
checkpoint lists are never overwritten or truncated, so it stays loadable.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import durable
from offbeat.errors import CheckpointError
from offbeat.replay.chunkfile import decode, encode, required
from offbeat.replay.shard import RowsUnavailable, Shard
from offbeat.types import Chunk

SHARD_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,62}[a-z0-9_])?")
SEGMENT_NAME = re.compile(rf"(?P<shard>{SHARD_NAME.pattern})-(?P<number>[0-9]{{6,12}})\.chunks")
_HASH = re.compile(r"[0-9a-f]{64}")
SEGMENT_BYTES = 64 << 20
_RECORD_BYTES = 8 << 20


@dataclass(frozen=True)
class Segment:
    """The first `length` bytes of a segment file: their hash, and the sequences of the first and last row in them."""

    name: str
    length: int
    sha256: str
    first: int
    last: int


@dataclass(frozen=True)
class SavedShard:
    """A shard in a checkpoint: the rows [oldest, committed), in consecutive segments."""

    worker: int
    boot: int
    oldest: int
    committed: int
    segments: tuple[Segment, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"segments": [asdict(segment) for segment in self.segments]}

    @classmethod
    def from_json(cls, value: Any, where: str) -> SavedShard:
        """Parses and checks everything that can be checked without the segment files."""
        worker, boot, oldest, committed = (
            required(value, key, int, where) for key in ("worker", "boot", "oldest", "committed")
        )
        segments = []
        for entry in required(value, "segments", list, where):
            name, sha256 = required(entry, "name", str, where), required(entry, "sha256", str, where)
            length, first, last = (required(entry, key, int, where) for key in ("length", "first", "last"))
            if not SEGMENT_NAME.fullmatch(name):
                raise CheckpointError(f"{where} lists a segment {name!r:.80}, which is not a valid segment name")
            if not _HASH.fullmatch(sha256):
                raise CheckpointError(f"{where} has sha256={sha256!r:.80}, which is not a SHA-256 hash")
            segments.append(Segment(name, length, sha256, first, last))
        if len({segment.name for segment in segments}) < len(segments):
            raise CheckpointError(f"{where} lists a segment twice")
        if oldest > committed or (oldest == committed) != (committed == 0):
            raise CheckpointError(f"{where} has oldest={oldest} and committed={committed}, which no ring can have")
        return cls(worker, boot, oldest, committed, tuple(segments))


class SegmentFiles:
    """The segment files of one shard: appends new rows, and lists the segments that still cover the ring.

    directory: other shards use it too; file names start with `name`. A segment of `segment_bytes` is closed.
    """

    def __init__(self, directory: Path, name: str = "shard", *, segment_bytes: int = SEGMENT_BYTES) -> None:
        if not SHARD_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid shard name; use lower-case letters, digits, - and _")
        if segment_bytes < 1:
            raise ValueError(f"segment_bytes={segment_bytes} is out of range: it must be at least 1")
        self._directory, self._name, self._segment_bytes = directory, name, segment_bytes
        self._live: list[Segment] = []
        self._running = hashlib.sha256()  # of the last live segment's bytes so far
        self._open = False  # whether the last live segment may grow
        self._saved = 0

    def append(self, shard: Shard, committed: int | None = None) -> SavedShard:
        """Writes the rows that are new since the last call and still in the ring; returns the shard as saved.

        committed: save as if the shard ended before this row. The writer may continue during the save; rows that it
        overwrites are not in the result.
        """
        committed = shard.committed if committed is None else committed
        if committed < self._saved:
            raise ValueError(f"the shard ends at row {committed}, but {self._saved} of its rows were already saved")
        while self._saved < committed:
            self._saved = max(self._saved, shard.oldest)
            self._extend(shard, committed)
        oldest = shard.oldest
        self._live = [segment for segment in self._live if segment.last >= oldest]
        return SavedShard(shard.worker, shard.boot, oldest, committed, tuple(self._live))

    def resume(self, saved: SavedShard, shard: Shard) -> None:
        """Fills the shard with the saved rows; later calls of `append` continue after them."""
        if (shard.worker, shard.boot) != (saved.worker, saved.boot):
            raise CheckpointError(
                f"the rows of {self._name!r} are from worker {saved.worker}, boot {saved.boot}; the shard is for "
                f"worker {shard.worker}, boot {shard.boot}: create the shard with the checkpoint's numbers"
            )
        try:
            shard.restore(_checked(read_rows(self._directory, saved), shard))
        except ValueError as error:  # intact files with rows that do not form a shard
            raise CheckpointError(f"the rows in {self._directory} cannot be restored: {error}") from error
        self._live, self._saved, self._open = list(saved.segments), saved.committed, False
        if self._live:
            last = self._live[-1]
            self._running = hashlib.sha256(durable.read_file(self._directory / last.name, last.length))
            self._open = last.length < self._segment_bytes

    def _extend(self, shard: Shard, committed: int) -> None:
        """Writes rows to the open segment until it is full or all are saved; a failure leaves them unsaved."""
        segment, running = self._current()
        path = self._directory / segment.name
        per_row = max(1, sum(each.size * np.dtype(each.dtype).itemsize for each in shard.schema))
        step = max(1, min(_RECORD_BYTES, self._segment_bytes) // per_row)
        start, length = self._saved, segment.length
        first = segment.first if length else start
        pieces = []
        while start < committed and length < self._segment_bytes:
            stop = min(start + step, committed)
            try:
                pieces.append(encode(shard.read(start, stop), shard.schema))
            except RowsUnavailable:  # overwritten during the save, as are all rows before them
                self._saved = shard.oldest
                return
            running.update(pieces[-1])
            start, length = stop, length + len(pieces[-1])
        try:
            durable.append(path, segment.length, pieces)
            if segment.length == 0:
                durable.fsync_directory(self._directory)
        except OSError:
            self._abandon(segment)
            raise
        if segment.length:
            self._live.pop()
        self._live.append(Segment(segment.name, length, running.hexdigest(), first, start - 1))
        self._running, self._saved, self._open = running, start, length < self._segment_bytes

    def _current(self) -> tuple[Segment, Any]:
        """The segment to append to and a copy of its running hash: the open one if its file has the expected length."""
        if self._open and durable.size(self._directory / self._live[-1].name) == self._live[-1].length:
            return self._live[-1], self._running.copy()
        names = [*durable.list_names(self._directory), *(segment.name for segment in self._live)]
        matches = (SEGMENT_NAME.fullmatch(name) for name in names)
        taken = [int(match["number"]) for match in matches if match and match["shard"] == self._name]
        name = f"{self._name}-{max(taken, default=0) + 1:06d}.chunks"
        return Segment(name, 0, "", 0, 0), hashlib.sha256()

    def _abandon(self, segment: Segment) -> None:
        """Closes a segment after a failed write, and removes the bytes past its listed length."""
        self._open = False
        with contextlib.suppress(OSError):  # the caller raises the write's own error; extra bytes are ignored anyway
            if segment.length:
                durable.truncate(self._directory / segment.name, segment.length)
            else:
                durable.remove_file(self._directory / segment.name)


def read_rows(directory: Path, saved: SavedShard) -> Iterator[Chunk]:
    """Yields the rows [oldest, committed) in order; checks each segment's length and hash before its rows are used."""
    reached = saved.oldest
    for segment in saved.segments:
        where = str(directory / segment.name)
        if durable.is_outside(directory / segment.name, directory.parent):
            raise CheckpointError(f"{where} is a link to a file outside of the run")
        size = durable.size(directory / segment.name)
        if size is None or size < segment.length:
            state = "is missing" if size is None else f"has {size} bytes"
            raise CheckpointError(f"{where} {state}, but the checkpoint lists {segment.length} bytes")
        data = durable.read_file(directory / segment.name, segment.length)
        if hashlib.sha256(data).hexdigest() != segment.sha256:
            raise CheckpointError(f"{where} does not match its hash: its bytes were changed")
        for chunk in decode(data, where):
            if (chunk.worker, chunk.boot) != (saved.worker, saved.boot):
                raise CheckpointError(f"{where} holds rows of another shard (worker {chunk.worker}, boot {chunk.boot})")
            stop = min(chunk.sequence + len(chunk), saved.committed)
            if chunk.sequence > reached:
                raise CheckpointError(f"{where} starts at row {chunk.sequence}; rows from {reached} are missing")
            if stop > reached:
                yield _slice(chunk, reached, stop)
                reached = stop
    if reached != saved.committed:
        raise CheckpointError(
            f"the segments in {directory} end at row {reached}; rows up to {saved.committed} are missing"
        )


def _slice(chunk: Chunk, start: int, stop: int) -> Chunk:
    """The rows with sequences [start, stop) of a chunk."""
    low, high = start - chunk.sequence, stop - chunk.sequence
    columns = {name: column[low:high] for name, column in chunk.columns.items()}
    return Chunk(columns, worker=chunk.worker, boot=chunk.boot, sequence=start)


def _checked(chunks: Iterator[Chunk], shard: Shard) -> Iterator[Chunk]:
    """The chunks, after checking that their fields are those of the shard."""
    expected = {field.name: (field.shape, field.dtype) for field in shard.schema}
    for chunk in chunks:
        actual = {name: (column.shape[1:], column.dtype.name) for name, column in chunk.columns.items()}
        for name in expected.keys() | actual.keys():
            if expected.get(name) != actual.get(name):
                raise CheckpointError(
                    f"the checkpoint's rows have {name!r} as {actual.get(name)}, this run's as {expected.get(name)} "
                    "(shape, dtype); resume with the environment and settings that made the checkpoint"
                )
        yield chunk
