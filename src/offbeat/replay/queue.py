"""A lock-free queue of rollouts from a collector to the learner: a bounded ring of slots in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from offbeat.memory import ArrayLayout, fence
from offbeat.replay.block import pack
from offbeat.types import Array, Chunk, Packed, Schema

WhenFull = Literal["block", "drop-oldest"]

_WORDS = 16
_WRITTEN, _OPENED, _BEGUN, _ABANDONED = range(4)  # words that the writer stores
_TAKEN, _DROPPED, _STALE = range(8, 11)  # words that the reader stores, on a separate cache line
_HEAD = 8  # words of each slot's head, of which the first is the version


@dataclass(frozen=True)
class Rollout:
    """T vector steps of N environments from one collector; the arrays are the reader's own.

    number: its index in the order of publication, from 0. version: of the weights that acted.
    valid (T, N) bool: False where a vector step gave no row, because the environment was only reset, or restarted; the
    row is then zeros. rows (T, N): packed, so that a minibatch is one gather. columns[name]: (T, N, *field.shape).
    """

    number: int
    version: int
    valid: Array
    rows: Array
    columns: Mapping[str, Array]


@dataclass(frozen=True)
class QueueCounts:
    """Counts of all rollouts so far: written = taken + dropped + stale + full.

    taken: copied out for the learner. dropped: overwritten before they were taken. stale: discarded because of their
    version. full: waiting. abandoned: begun and never published, so not counted as written.
    """

    written: int
    taken: int
    dropped: int
    stale: int
    full: int
    abandoned: int


class RolloutQueue:
    """A ring of slots with exactly one writer, a collector, and one reader, the learner.

    The writer: `write` for each vector step; the first of a rollout begins it, and the last publishes it. The reader:
    `take` and `discard`.
    A rollout is identified by its number n and stored in slot n % slots. Each word is stored by one side only:

    - by the writer: `written`, one past the newest complete rollout, and `opened`, one past the newest whose slot was
      ever opened for writing. `opened` is stored before the first byte of a rollout, `written` after the last;
    - by the reader: taken, dropped and stale, whose sum `next` is the number that it examines next. They only grow, and
      are raised after the rollout is copied.

    So rollouts in [next, written) that are at least `opened - slots` are full, and no torn rollout is handed out:

    - "block": the writer opens slot n only when `next` > n - slots: the reader has then copied the slot's previous
      rollout, and does not read the slot before n is written.
    - "drop-oldest": the writer opens its slot whatever the reader does. The reader copies a rollout, and then checks
      whether `opened` has reached its slot. If so, the copy may be torn and is discarded. If not, the rollout was
      complete while it was copied. This needs only ordered stores and ordered loads. Claiming a slot in place would
      need an atomic compare-and-swap, which Python does not offer over shared memory.

    No number is handed out twice, because `next` only grows, and every skipped number is counted.

    A writer that is killed has either stored `written` or not: a half-filled rollout is never full. Its replacement
    continues with the same number in the same slot, and counts the abandoned rollout. A reader is not replaced.
    """

    def __init__(
        self,
        schema: Schema,
        steps: int,
        num_envs: int,
        slots: int,
        *,
        when_full: WhenFull = "block",
        buffer: Any = None,
    ) -> None:
        for name, value in {"steps": steps, "num_envs": num_envs, "slots": slots}.items():
            if value < 1:
                raise ValueError(f"{name}={value} is out of range: it must be at least 1")
        if when_full not in get_args(WhenFull):
            raise ValueError(f"when_full={when_full!r} is unknown; use one of {', '.join(get_args(WhenFull))}")
        self.schema, self.steps, self.num_envs, self.slots, self.when_full = schema, steps, num_envs, slots, when_full
        total = self.nbytes(schema, steps, num_envs, slots)
        memory = np.zeros(total, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, count=total)
        if not memory.flags.writeable:
            raise ValueError("the queue's buffer is read-only; pass a writable one")
        self._words = memory[: 8 * _WORDS].view(np.int64).data
        blocks = memory[8 * _WORDS :].reshape(slots, -1)
        self._row, self._beside = schema.row, schema.unpacked
        self._slots = [_Slot(schema, steps, num_envs, block) for block in blocks]
        self.shared = buffer is not None
        self._step: int | None = None  # vector steps in the writer's slot; None: no rollout was begun
        # Exact for the process that began to write; one that replaces it counts as if no row had been left out.
        self.rows = self.written * steps * num_envs

    @staticmethod
    def nbytes(schema: Schema, steps: int, num_envs: int, slots: int) -> int:
        """The buffer size that a queue needs: its words, then the slots."""
        return 8 * _WORDS + slots * _layout(schema, steps, num_envs).nbytes

    # The writer's side.

    def begin(self, version: int) -> bool:
        """Opens the next slot for a rollout of T vector steps; False if the writer has to wait for the reader.

        Abandons first what a killed writer had begun. Versions never decrease from rollout to rollout.
        """
        if self._step is not None:
            raise RuntimeError("a rollout is already being filled; complete or abandon it first")
        self.abandon()
        words = self._words
        number = words[_WRITTEN]
        if not self.room:
            return False
        words[_BEGUN] += 1
        words[_OPENED] = number + 1
        fence()
        self._slots[number % self.slots].head[0] = version
        self._step = 0
        return True

    def write(self, chunk: Chunk, valid: Array | None = None, version: int = 0) -> int:
        """Writes the rows of the next vector step and returns their number.

        valid (N,) bool: the environments that gave a row; None: all. version: of the weights that acted. A rollout has
        one: that of its first step. A chunk that does not fit changes nothing.
        """
        rows = chunk.rows
        if not isinstance(rows, tuple) or rows[0] is not self._row or self._beside:
            rows = pack(chunk.columns, self.schema)
        given = self.num_envs if valid is None else int(np.count_nonzero(valid))
        if rows[2] != given or (valid is not None and valid.shape != (self.num_envs,)):
            raise ValueError(
                f"the chunk has {rows[2]} rows, but {given} of {self.num_envs} environments are valid; pass one row "
                f"for each valid environment, and `valid` of shape ({self.num_envs},)"
            )
        if self._step is None and not self.begin(version):
            raise RuntimeError("the queue is full; wait until `room` before the first step of a rollout")
        assert self._step is not None
        if valid is not None and given < self.num_envs:
            rows = _spread(rows, valid)
        number = self._words[_WRITTEN]
        self._slots[number % self.slots].put(self._step, rows, valid)
        self._step += 1
        self.rows += given
        if self._step == self.steps:
            fence()
            self._words[_WRITTEN] = number + 1
            self._step = None
        return given

    def ready(self, permit: int, calls: int) -> bool:
        """Each rollout needs a permit and a free slot; within a rollout the writer never waits."""
        return self.filling or (self.written < permit and self.room)

    @property
    def may_change_weights(self) -> bool:
        return not self.filling

    def continue_at(self, rows: int) -> None:
        self.rows = rows

    def cut(self, env: int | None = None) -> None:
        """Does nothing: rows show their episode, and a rollout that was begun and not published is begun again."""

    @property
    def room(self) -> bool:
        """Whether a rollout can be begun without waiting for the reader."""
        return self.when_full == "drop-oldest" or self._words[_WRITTEN] - self._next < self.slots

    @property
    def filling(self) -> bool:
        """Whether this process has begun a rollout and neither published nor abandoned it."""
        return self._step is not None

    @property
    def written(self) -> int:
        """The number of published rollouts."""
        return self._words[_WRITTEN]

    def filled(self) -> tuple[Array, Array]:
        """Copies of the k vector steps so far of the rollout being filled: rows (k, N) and valid (k, N)."""
        slot = self._slots[self._words[_WRITTEN] % self.slots]
        count = self._step or 0
        return slot.rows[:count].copy(), slot.valid[:count].copy()

    def complete(self, block: Array) -> None:
        """Fills the rollout that was begun with one that `take_block` of another queue returned, and publishes it."""
        number = self._words[_WRITTEN]
        slot = self._slots[number % self.slots]
        if self._step is None or block.shape != slot.block.shape:
            raise RuntimeError("complete needs a rollout that was begun, and a block of a queue with the same sizes")
        slot.block[...] = block
        fence()
        self._words[_WRITTEN] = number + 1
        self._step = None

    def refill(self, rows: Array, valid: Array) -> None:
        """Restores vector steps that `filled` returned into a rollout that was just begun."""
        if self._step != 0 or self._beside:
            raise RuntimeError("refill needs a rollout that was just begun, and a schema of packed fields only")
        slot = self._slots[self._words[_WRITTEN] % self.slots]
        slot.rows[: len(rows)], slot.valid[: len(rows)] = rows, valid
        self._step = len(rows)

    def abandon(self) -> None:
        """Discards a rollout that this process, or a killed one before it, has begun and not published."""
        # Assigned, not incremented: if this process is killed here, its replacement computes the correct count.
        self._words[_ABANDONED] = self._words[_BEGUN] - self._words[_WRITTEN]
        self._step = None

    # The reader's side.

    def take(self) -> Rollout | None:
        """A copy of the oldest waiting rollout; None if there is none, or if the writer overwrote it meanwhile."""
        if (taken := self._take()) is None:
            return None
        number, copy = taken
        return Rollout(number, copy.head[0], copy.valid, copy.rows, copy.columns)

    def take_block(self) -> Array | None:
        """Like `take`, as bytes for `complete` of another queue."""
        return None if (taken := self._take()) is None else taken[1].block

    def _take(self) -> tuple[int, _Slot] | None:
        """The number and a copy of the oldest waiting rollout."""
        if (number := self._oldest_full()) is None:
            return None
        copy = self._copy(self._slots[number % self.slots])
        fence()
        if number < self._words[_OPENED] - self.slots:
            return None
        self._advance_past(number, _TAKEN)
        return number, copy

    def discard(self, older_than: int) -> int:
        """Drops waiting rollouts of versions before `older_than` and returns their number."""
        stale = self._words[_STALE]
        while (number := self._oldest_full()) is not None:
            # If the writer has reused the slot, this is a later rollout's version, which is never smaller.
            if self._slots[number % self.slots].head[0] >= older_than:
                break
            self._advance_past(number, _STALE)
        return self._words[_STALE] - stale

    def counts(self) -> QueueCounts:
        """A consistent snapshot if the reader calls it; in another process, the values may be of different times."""
        words = self._words
        opened = words[_OPENED]
        fence()
        written = min(words[_WRITTEN], opened)  # the writer may have published more since `opened` was read
        taken, dropped, stale = words[_TAKEN], words[_DROPPED], words[_STALE]
        following = taken + dropped + stale
        oldest = max(following, opened - self.slots)
        return QueueCounts(written, taken, dropped + oldest - following, stale, written - oldest, words[_ABANDONED])

    @property
    def _next(self) -> int:
        """The first number that was neither taken, dropped nor stale."""
        return self._words[_TAKEN] + self._words[_DROPPED] + self._words[_STALE]

    def _oldest_full(self) -> int | None:
        """The number of the oldest waiting rollout."""
        number = max(self._next, self._words[_OPENED] - self.slots)
        if number >= self._words[_WRITTEN]:
            return None
        fence()
        return number

    def _copy(self, slot: _Slot) -> _Slot:
        return _Slot(self.schema, self.steps, self.num_envs, slot.block.copy())

    def _advance_past(self, number: int, counter: int) -> None:
        """Adds a rollout to a counter, and the skipped ones before it to `dropped`."""
        self._words[_DROPPED] += number - self._next
        self._words[counter] += 1


class _Slot:
    """The arrays of one rollout, as views of `block`, a flat array of bytes."""

    def __init__(self, schema: Schema, steps: int, num_envs: int, block: Array) -> None:
        self.block = block
        head, self.valid, self.rows, *beside = _layout(schema, steps, num_envs).views(block)
        self.head, self._bytes = head.data, self.rows.reshape(-1).view(np.uint8).data
        self._width = num_envs * schema.row.itemsize
        self._beside = {field.name: array for field, array in zip(schema.unpacked, beside, strict=True)}
        self.columns = {name: self.rows[name] for name in schema.row.names or ()} | self._beside

    def put(self, step: int, rows: Packed, valid: Array | None) -> None:
        """Stores one vector step: one row for each environment."""
        _, data, _, beside = rows
        self._bytes[step * self._width : (step + 1) * self._width] = data
        self.valid[step] = True if valid is None else valid
        for name, store in self._beside.items():
            store[step] = beside[name]


def _spread(rows: Packed, valid: Array) -> Packed:
    """Expands the rows of valid environments to one row for each environment (N,), zeros where it is not valid."""

    def spread(given: Array) -> Array:
        full = np.zeros((len(valid), *given.shape[1:]), given.dtype)
        full[valid] = given
        return full

    row, data, count, beside = rows
    packed = spread(np.ndarray(count, row, data)).tobytes()
    return row, packed, len(valid), {name: spread(column) for name, column in beside.items()}


def _layout(schema: Schema, steps: int, num_envs: int) -> ArrayLayout:
    """A slot's arrays: head, valid, rows, then the fields beside them."""
    lead = steps, num_envs
    beside = (((*lead, *each.shape), np.dtype(each.dtype)) for each in schema.unpacked)
    return ArrayLayout([((_HEAD,), np.dtype(np.int64)), (lead, np.dtype(bool)), (lead, schema.row), *beside])
