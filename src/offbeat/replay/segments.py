"""Append-only files that follow a shard, so that saving costs what is new and not what is stored.

A segment is a file of chunk records. A checkpoint lists the segments that cover its ring, each with a length and the
hash of that many bytes. A file may have grown since, which does not concern the checkpoint: bytes past the listed
length count for nothing. What a kept checkpoint lists is never overwritten or cut, so it stays loadable.
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
from offbeat.replay.chunkfile import encode, records, required
from offbeat.replay.shard import NotHeld, Shard
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
class Listing:
    """A shard as a checkpoint holds it: the rows [oldest, committed), in segments that follow each other."""

    worker: int
    boot: int
    oldest: int
    committed: int
    segments: tuple[Segment, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"segments": [asdict(segment) for segment in self.segments]}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Listing:
        """Checks everything that does not need the files themselves."""
        worker, boot, oldest, committed = (
            required(value, key, int, where) for key in ("worker", "boot", "oldest", "committed")
        )
        segments = []
        for entry in required(value, "segments", list, where):
            name, sha256 = required(entry, "name", str, where), required(entry, "sha256", str, where)
            length, first, last = (required(entry, key, int, where) for key in ("length", "first", "last"))
            if not SEGMENT_NAME.fullmatch(name):
                raise CheckpointError(f"{where} names a segment {name!r:.80}, which is not a segment's name")
            if not _HASH.fullmatch(sha256):
                raise CheckpointError(f"{where} has sha256={sha256!r:.80}, which is not a hash")
            segments.append(Segment(name, length, sha256, first, last))
        if len({segment.name for segment in segments}) < len(segments):
            raise CheckpointError(f"{where} lists a segment twice")
        if oldest > committed or (oldest == committed) != (committed == 0):
            raise CheckpointError(f"{where} has oldest={oldest} and committed={committed}, which is no ring's state")
        return cls(worker, boot, oldest, committed, tuple(segments))


class Segments:
    """The segments of one shard, in `directory`: appends what is new, lists what is live.

    directory: shared with other shards; files are told apart by `name`. A segment is closed at `segment_bytes`.
    """

    def __init__(self, directory: Path, name: str = "shard", *, segment_bytes: int = SEGMENT_BYTES) -> None:
        if not SHARD_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a shard's files; use small letters, digits, - and _")
        if segment_bytes < 1:
            raise ValueError(f"segment_bytes={segment_bytes} holds nothing; it must be at least 1")
        self._directory, self._name, self._segment_bytes = directory, name, segment_bytes
        self._live: list[Segment] = []
        self._running = hashlib.sha256()  # over the last live segment, as far as it is written
        self._open = False  # whether the last live segment may still grow
        self._saved = 0

    def append(self, shard: Shard, committed: int | None = None) -> Listing:
        """Writes the rows that came since the last call and are still in the ring; returns what is live now.

        committed: as if the shard ended before this row. Its writer may go on meanwhile: rows that it writes over are
        not in the listing.
        """
        committed = shard.committed if committed is None else committed
        if committed < self._saved:
            raise ValueError(f"the shard ends at row {committed}, before the {self._saved} rows that were saved of it")
        while self._saved < committed:
            self._saved = max(self._saved, shard.oldest)
            self._extend(shard, committed)
        oldest = shard.oldest
        self._live = [segment for segment in self._live if segment.last >= oldest]
        return Listing(shard.worker, shard.boot, oldest, committed, tuple(self._live))

    def resume(self, listing: Listing, shard: Shard) -> None:
        """Fills the shard with the rows that the listing names, and goes on appending after them."""
        if (shard.worker, shard.boot) != (listing.worker, listing.boot):
            raise CheckpointError(
                f"the rows of {self._name!r} are from worker {listing.worker}, boot {listing.boot}; the shard is for "
                f"worker {shard.worker}, boot {shard.boot}: make it with the checkpoint's numbers"
            )
        try:
            shard.restore(_fitting(rows(self._directory, listing), shard))
        except ValueError as error:  # whole files whose rows make no sense
            raise CheckpointError(f"the rows in {self._directory} cannot be replayed: {error}") from error
        self._live, self._saved, self._open = list(listing.segments), listing.committed, False
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
            except NotHeld:  # the writer came round: what is saved before them is not in the ring any more either
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
        """The segment to write to and a copy of its running hash: the open one if its file ends where it should."""
        if self._open and durable.size(self._directory / self._live[-1].name) == self._live[-1].length:
            return self._live[-1], self._running.copy()
        names = [*durable.listing(self._directory), *(segment.name for segment in self._live)]
        found = (SEGMENT_NAME.fullmatch(name) for name in names)
        taken = [int(match["number"]) for match in found if match and match["shard"] == self._name]
        name = f"{self._name}-{max(taken, default=0) + 1:06d}.chunks"
        return Segment(name, 0, "", 0, 0), hashlib.sha256()

    def _abandon(self, segment: Segment) -> None:
        """After a failed write: no byte after it can be trusted, so the file is closed and its tail given back."""
        self._open = False
        with contextlib.suppress(OSError):  # the failure itself is what the caller hears of; a tail does no harm
            if segment.length:
                durable.truncate(self._directory / segment.name, segment.length)
            else:
                durable.remove_file(self._directory / segment.name)


def rows(directory: Path, listing: Listing) -> Iterator[Chunk]:
    """The rows [oldest, committed) in order; each segment's length and hash are checked before its rows are used."""
    reached = listing.oldest
    for segment in listing.segments:
        where = str(directory / segment.name)
        if durable.leads_out(directory / segment.name, directory.parent):
            raise CheckpointError(f"{where} is a link that leads out of the run")
        found = durable.size(directory / segment.name)
        if found is None or found < segment.length:
            state = "is missing" if found is None else f"has {found} bytes"
            raise CheckpointError(f"{where} {state}, where the checkpoint lists {segment.length} bytes")
        data = durable.read_file(directory / segment.name, segment.length)
        if hashlib.sha256(data).hexdigest() != segment.sha256:
            raise CheckpointError(f"{where} does not match its hash: its bytes were changed")
        for chunk in records(data, where):
            if (chunk.worker, chunk.boot) != (listing.worker, listing.boot):
                raise CheckpointError(
                    f"{where} holds rows of worker {chunk.worker}, boot {chunk.boot}: another shard's"
                )
            stop = min(chunk.sequence + len(chunk), listing.committed)
            if chunk.sequence > reached:
                raise CheckpointError(f"{where} starts at row {chunk.sequence}; rows from {reached} are missing")
            if stop > reached:
                yield _part(chunk, reached, stop)
                reached = stop
    if reached != listing.committed:
        raise CheckpointError(
            f"the segments in {directory} end at row {reached}; rows up to {listing.committed} are missing"
        )


def _part(chunk: Chunk, start: int, stop: int) -> Chunk:
    low, high = start - chunk.sequence, stop - chunk.sequence
    columns = {name: column[low:high] for name, column in chunk.columns.items()}
    return Chunk(columns, worker=chunk.worker, boot=chunk.boot, sequence=start)


def _fitting(chunks: Iterator[Chunk], shard: Shard) -> Iterator[Chunk]:
    expected = {field.name: (field.shape, field.dtype) for field in shard.schema}
    for chunk in chunks:
        found = {name: (column.shape[1:], column.dtype.name) for name, column in chunk.columns.items()}
        for name in expected.keys() | found.keys():
            if expected.get(name) != found.get(name):
                raise CheckpointError(
                    f"the checkpoint's rows have {name!r} as {found.get(name)}, this run's as {expected.get(name)} "
                    "(shape, dtype); resume with the environment and settings that made the checkpoint"
                )
        yield chunk
