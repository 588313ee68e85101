"""The newest weights in memory that several processes see: one writer, any number of readers, no lock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offbeat.errors import OffbeatError
from offbeat.memory import fence
from offbeat.types import Array, Weights
from offbeat.weights.publication import Publication

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of every array."""

_ALIGNMENT = 64
_COUNT = 0  # of the header: how many publications there have been
_BEGUN, _ENDED, _VERSION, _CHECKSUM, _TIME = range(5)  # of each copy's own header
_WORDS = 8
MOST_FAILURES = 1_000


def layout_of(weights: Weights) -> Layout:
    return tuple((name, np.asarray(array).dtype.str, np.shape(array)) for name, array in weights.items())


class SharedWeights:
    """Two copies, written in turn: while one is being written, the other is whole.

    A reader takes the copy that was finished last and looks afterwards whether the writer has come back to it, and
    whether the checksum fits; if not, it reads again. So a reader never gets a torn set, however slow it is, and a
    process that is killed while it reads or writes holds nobody up.
    """

    def __init__(self, layout: Layout, buffer: Any) -> None:
        self._layout = layout
        self._places, size = _places(layout)
        memory = np.frombuffer(buffer, np.uint8, count=self.nbytes(layout))
        header = 8 * _WORDS
        self._header = memory[:header].view(np.int64).data
        copies = memory[header:].reshape(2, header + size)
        self._heads = [copy[:header].view(np.int64).data for copy in copies]
        self._bodies = [copy[header:] for copy in copies]

    @staticmethod
    def nbytes(layout: Layout) -> int:
        return 8 * _WORDS + 2 * (8 * _WORDS + _places(layout)[1])

    @property
    def count(self) -> int:
        """Publications so far."""
        return self._header[_COUNT]

    def publish(self, version: int, weights: Weights) -> None:
        """Makes a version the newest; its arrays are as the layout says."""
        number = self.count + 1
        head, body = self._heads[number % 2], self._bodies[number % 2]
        head[_BEGUN] = number
        fence()
        for (name, dtype, shape), (start, stop) in zip(self._layout, self._places, strict=True):
            array = np.asarray(weights[name])
            if array.dtype.str != dtype or array.shape != shape:
                raise ValueError(f"{name!r} is {array.dtype} {array.shape}; the layout has {np.dtype(dtype)} {shape}")
            body[start:stop] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        head[_VERSION], head[_TIME], head[_CHECKSUM] = version, time.monotonic_ns(), _checksum(version, body)
        fence()
        head[_ENDED] = number
        fence()
        self._header[_COUNT] = number

    def newest(self) -> tuple[Publication, int]:
        """The newest version, as a copy of one's own, and when it was published (time.monotonic_ns)."""
        for _ in range(MOST_FAILURES):
            if (number := self.count) == 0:
                raise OffbeatError("no weights have been published yet")
            head, body = self._heads[number % 2], self._bodies[number % 2].copy()
            version, checksum, when = head[_VERSION], head[_CHECKSUM], head[_TIME]
            fence()
            if head[_BEGUN] == head[_ENDED] == number and checksum == _checksum(version, body):
                return Publication(version, self._named(body)), when
        raise OffbeatError(f"the published weights do not match their checksum, {MOST_FAILURES} times in a row")

    def _named(self, body: Array) -> Mapping[str, Array]:
        return {
            name: body[start:stop].view(dtype).reshape(shape)
            for (name, dtype, shape), (start, stop) in zip(self._layout, self._places, strict=True)
        }


def _places(layout: Layout) -> tuple[Sequence[tuple[int, int]], int]:
    """Where each array begins and ends, aligned, and the size of all."""
    places, start = [], 0
    for _, dtype, shape in layout:
        length = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        places.append((start, start + length))
        start += -(-length // _ALIGNMENT) * _ALIGNMENT
    return places, start


def _checksum(version: int, body: Array) -> int:
    """The sum of all words: it tells a mixture of two versions, in a tenth of the time of a CRC."""
    return (int(np.add.reduce(body.view(np.uint64))) + version) & (2**63 - 1)
