"""Buffers of samples on their way from a worker to the trainer, and their form as bytes: records of replay's format."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from offbeat.compat.tmrl.structures import flatten, rebuild
from offbeat.errors import CheckpointError, UsageError
from offbeat.replay import chunkfile
from offbeat.run.snapshot import from_json, to_json
from offbeat.types import Array, Chunk, Field, Schema

MAXLEN = 500_000
_HEADER, _POSITION = "header", "position"
_STATISTICS = ("train_return", "test_return", "train_steps", "test_steps")


def _statistic(name: str) -> property:
    """The newest value; setting it also records an episode."""

    def value(buffer: Buffer) -> float:
        return buffer._newest[name]

    def record(buffer: Buffer, value: float) -> None:
        buffer._newest[name] = value
        buffer.episodes[name].append(float(value))

    return property(value, record)


class Buffer:
    """Samples (act, new_obs, rew, terminated, truncated, info) in order, and the episodes that ended meanwhile.

    `act` led to `new_obs`; in the first sample of an episode, which has the observation of the reset, it is None.
    stat_train_return, stat_test_return, stat_train_steps, stat_test_steps: of the newest episode of each kind. Setting
    one records the episode, so that the trainer's means are over all episodes (`episodes`), not over the newest alone.
    resets: how many samples are no environment step. sources: (source, count) of consecutive samples of one worker.
    """

    def __init__(self, maxlen: int = MAXLEN) -> None:
        self.memory: list[Any] = []
        self.maxlen = maxlen
        self.resets = 0
        self.sources: list[tuple[Any, int]] = []
        self.episodes: dict[str, list[float]] = {name: [] for name in _STATISTICS}
        self._newest: dict[str, float] = {"train_return": 0.0, "test_return": 0.0, "train_steps": 0, "test_steps": 0}

    def append_sample(self, sample: Any) -> None:
        """Appends a sample; beyond `maxlen`, the oldest are dropped."""
        self.memory.append(sample)
        self.resets += _is_reset(sample)
        self._came_from(None, 1)
        self._clip()

    def clear(self) -> None:
        """Drops the samples and the record of episodes; the newest returns and lengths stay."""
        self.memory, self.sources, self.resets = [], [], 0
        self.episodes = {name: [] for name in _STATISTICS}

    def __len__(self) -> int:
        return len(self.memory)

    def __iadd__(self, other: Buffer) -> Buffer:
        self.memory += other.memory
        self.resets += other.resets
        for source, count in other.sources:
            self._came_from(source, count)
        for name in _STATISTICS:
            self.episodes[name] += other.episodes[name]
        self._newest = dict(other._newest)
        self._clip()
        return self

    def assign(self, source: Any) -> None:
        """Says that all samples are of one source."""
        self.sources = [(source, len(self))] if self.memory else []

    def _came_from(self, source: Any, count: int) -> None:
        if self.sources and self.sources[-1][0] == source:
            source, before = self.sources.pop()
            count += before
        self.sources.append((source, count))

    def _clip(self) -> None:
        if (surplus := len(self.memory) - self.maxlen) > 0:
            logging.warning("a buffer holds more than maxlen=%s samples: the oldest are dropped", self.maxlen)
            self.resets -= sum(map(_is_reset, self.memory[:surplus]))
            self.memory = self.memory[surplus:]
            while surplus:
                source, count = self.sources.pop(0)
                if count > surplus:
                    self.sources.insert(0, (source, count - surplus))
                surplus -= min(count, surplus)

    stat_train_return = _statistic("train_return")
    stat_test_return = _statistic("test_return")
    stat_train_steps = _statistic("train_steps")
    stat_test_steps = _statistic("test_steps")


def _is_reset(sample: Any) -> bool:
    """Whether a sample is the first of an episode; a compressor may have made anything of it."""
    return isinstance(sample, tuple | list) and len(sample) > 0 and sample[0] is None


def encode(buffer: Any, worker: int = 0, boot: int = 0, sequence: int = 0) -> bytes:
    """A buffer as chunk records: first its header, then the samples of each structure, stacked.

    (worker, boot, sequence) name its first sample. UsageError names the part of a sample that cannot be sent.
    """
    groups: dict[str, tuple[list[int], list[list[Array]]]] = {}
    for position, sample in enumerate(buffer.memory):
        structure, arrays = flatten(sample, f"sample {position} of the buffer", columns=True)
        key = to_json([structure, [[array.dtype.name, list(array.shape)] for array in arrays]]).decode()
        positions, rows = groups.setdefault(key, ([], []))
        positions.append(position)
        rows.append(arrays)
    header = to_json(
        {
            "structures": list(groups),
            "samples": len(buffer.memory),
            "resets": int(getattr(buffer, "resets", 0)),
            "episodes": episodes_of(buffer),
            "newest": [float(getattr(buffer, f"stat_{name}", 0.0)) for name in _STATISTICS],
        }
    )
    name: Any = {"worker": worker, "boot": boot, "sequence": sequence}
    text = np.frombuffer(header, np.uint8)
    pieces = [chunkfile.encode(Chunk({_HEADER: text}, **name), Schema((Field(_HEADER, (), "uint8"),)))]
    for positions, rows in groups.values():
        columns = {_POSITION: np.asarray(positions, np.int64)}
        columns |= {str(index): np.stack(each) for index, each in enumerate(zip(*rows, strict=True))}
        fields = (Field(key, column.shape[1:], column.dtype.name) for key, column in columns.items())
        pieces.append(chunkfile.encode(Chunk(columns, **name), Schema(tuple(fields))))
    return b"".join(pieces)


def episodes_of(buffer: Any) -> dict[str, list[float]]:
    """The returns and lengths of the episodes in a buffer; of an own kind of buffer, its newest ones."""
    if isinstance(buffer, Buffer):
        return buffer.episodes
    if not len(buffer):
        return {name: [] for name in _STATISTICS}
    newest = {name: getattr(buffer, f"stat_{name}", None) for name in _STATISTICS}
    return {name: [] if value is None else [float(value)] for name, value in newest.items()}


def decode(data: bytes, where: str) -> Iterator[tuple[Buffer, Chunk]]:
    """The buffers in a file's bytes, each with a chunk that names its samples (worker, boot, sequence)."""
    chunks = chunkfile.decode(data, where)
    first = next(chunks, None)
    while first is not None:
        if _HEADER not in first.columns:
            raise CheckpointError(f"{where} has samples without a header in front")
        header = from_json(bytes(first.columns[_HEADER]), where)
        structures = chunkfile.required(header, "structures", list, where)
        count = chunkfile.required(header, "samples", int, where)
        buffer = Buffer()
        samples = _samples(itertools.islice(chunks, len(structures)), structures, count, where)
        buffer.memory = samples
        buffer.resets = chunkfile.required(header, "resets", int, where)
        buffer.assign((first.worker, first.boot))
        _restore_statistics(buffer, header, where)
        name: Any = {"worker": first.worker, "boot": first.boot, "sequence": first.sequence}
        yield buffer, Chunk({_POSITION: np.zeros(count, np.int8)}, **name)
        first = next(chunks, None)


def _samples(chunks: Iterable[Chunk], structures: list[Any], count: int, where: str) -> list[Any]:
    found: dict[int, Any] = {}
    for chunk, text in zip(chunks, structures, strict=False):
        structure, leaves = from_json(str(text).encode(), where)
        columns = [chunk.columns.get(str(index)) for index in range(len(leaves))]
        if _POSITION not in chunk.columns or any(column is None for column in columns):
            raise CheckpointError(f"{where} has samples with other columns than their structure")
        for row, position in enumerate(chunk.columns[_POSITION].tolist()):
            found[position] = rebuild(structure, [column[row] for column in columns if column is not None], where)
    if found.keys() != set(range(count)):
        raise CheckpointError(f"{where} declares {count} samples and has {len(found)}")
    return [found[position] for position in range(count)]


def _restore_statistics(buffer: Buffer, header: Any, where: str) -> None:
    episodes: Any = chunkfile.required(header, "episodes", dict, where)
    newest: Any = chunkfile.required(header, "newest", list, where)
    try:
        buffer.episodes = {name: [float(value) for value in episodes[name]] for name in _STATISTICS}
        buffer._newest = dict(zip(_STATISTICS, map(float, newest), strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where} has returns that are not numbers") from error


def check_buffer(buffer: Any) -> None:
    """Raises UsageError for what `retrieve_buffer` returned, unless it is a buffer."""
    if not hasattr(buffer, "__len__"):
        raise UsageError(
            f"interface: retrieve_buffer returned a {type(buffer).__name__}, which has no length; return a Buffer of "
            "samples (act, new_obs, rew, terminated, truncated, info)"
        )
