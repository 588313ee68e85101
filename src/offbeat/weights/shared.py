"""The newest weights in shared memory: one writer, any number of readers, no lock."""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.errors import OffbeatError
from offbeat.memory import ArrayLayout, fence
from offbeat.types import Array, Weights
from offbeat.weights.publication import Publication

WeightsLayout = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of every array."""

_COUNT = 0  # index in the header: the number of publications
_BEGUN, _ENDED, _VERSION, _CHECKSUM = range(4)  # indices in the header of each copy
_WORDS = 8
MAX_READ_ATTEMPTS = 1_000


def weights_layout(weights: Weights) -> WeightsLayout:
    return tuple((name, np.asarray(array).dtype.str, np.shape(array)) for name, array in weights.items())


class SharedWeights:
    """Double-buffered weights: while one copy is being written, the other is complete.

    A reader copies the latest complete buffer. It then checks that the writer did not start to overwrite it, and that
    the checksum matches; otherwise it reads again. So a reader never returns a mixture of two versions, however slow it
    is, and a process that is killed while it reads or writes blocks no other process.
    """

    def __init__(self, layout: WeightsLayout, buffer: Any) -> None:
        self._layout, self._arrays = layout, _arrays(layout)
        memory = np.frombuffer(buffer, np.uint8, count=self.nbytes(layout))
        header = 8 * _WORDS
        self._header = memory[:header].view(np.int64).data
        copies = memory[header:].reshape(2, -1)
        self._heads = [copy[:header].view(np.int64).data for copy in copies]
        self._bodies = [copy[header:] for copy in copies]
        self._stores = [self._arrays.views(body) for body in self._bodies]

    @staticmethod
    def nbytes(layout: WeightsLayout) -> int:
        return 8 * _WORDS + 2 * (8 * _WORDS + _arrays(layout).nbytes)

    @property
    def count(self) -> int:
        """The number of publications so far."""
        return self._header[_COUNT]

    def publish(self, version: int, weights: Weights) -> None:
        """Publishes a version; names, dtypes and shapes of its arrays must match the layout."""
        number = self.count + 1
        head, body = self._heads[number % 2], self._bodies[number % 2]
        head[_BEGUN] = number
        fence()
        for (name, dtype, shape), store in zip(self._layout, self._stores[number % 2], strict=True):
            array = np.asarray(weights[name])
            if array.dtype.str != dtype or array.shape != shape:
                raise ValueError(f"{name!r} is {array.dtype} {array.shape}; it must be {np.dtype(dtype)} {shape}")
            store[...] = array
        head[_VERSION], head[_CHECKSUM] = version, _checksum(version, body)
        fence()
        head[_ENDED] = number
        fence()
        self._header[_COUNT] = number

    def newest(self) -> Publication:
        """A copy of the newest version."""
        for _ in range(MAX_READ_ATTEMPTS):
            if (number := self.count) == 0:
                raise OffbeatError("no weights have been published yet; call publish first")
            head, body = self._heads[number % 2], self._bodies[number % 2].copy()
            version, checksum = head[_VERSION], head[_CHECKSUM]
            fence()
            if head[_BEGUN] == head[_ENDED] == number and checksum == _checksum(version, body):
                names = (name for name, _, _ in self._layout)
                return Publication(version, dict(zip(names, self._arrays.views(body), strict=True)))
        raise OffbeatError(
            f"the published weights did not match their checksum {MAX_READ_ATTEMPTS} times in a row; the shared memory "
            "is damaged: resume the run from its checkpoint"
        )


def _arrays(layout: WeightsLayout) -> ArrayLayout:
    return ArrayLayout([(shape, np.dtype(dtype)) for _, dtype, shape in layout])


def _checksum(version: int, body: Array) -> int:
    """The sum of all 64-bit words: it detects a mixture of two versions, in a tenth of the time of a CRC."""
    return (int(np.add.reduce(body.view(np.uint64))) + version) & (2**63 - 1)
