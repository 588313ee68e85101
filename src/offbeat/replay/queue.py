"""Rollouts on their way from a collector to the learner: a bounded ring of slots in shared memory, without a lock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from offbeat.memory import fence
from offbeat.replay.block import Laid, lay_out, pack
from offbeat.types import Array, Chunk, Packed, Schema

WhenFull = Literal["block", "drop-oldest"]
State = Literal["free", "filling", "full", "in use"]

_WORDS = 16
_WRITTEN, _OPENED, _BEGUN, _ABANDONED = range(4)  # the writer's words
_FREED, _TAKEN, _DROPPED, _STALE = range(8, 12)  # the reader's, on a cache line of their own
_VERSION, _CALLS, _TIME = range(3)  # of each slot's head
_HEAD = 8


@dataclass(frozen=True)
class Rollout:
    """T vector steps of N environments, as one collector made them.

    number: its place in the order of publication, from 0. version: of the weights that acted. calls: vector steps that
    the collector had made before. time: of publication (time.monotonic_ns).
    valid (T, N) bool: False where a call gave no row, because an environment was only reset, or was restarted; there,
    the row is zeros. rows (T, N): packed, so that a minibatch is one gather. columns[name]: (T, N, *field.shape).
    """

    number: int
    version: int
    calls: int
    time: int
    valid: Array
    rows: Array
    columns: Mapping[str, Array]


@dataclass(frozen=True)
class Counts:
    """What became of all rollouts so far: written = taken + dropped + stale + full.

    taken: handed to the learner, whether it still uses them or not. dropped: written over before they were taken.
    stale: discarded for their version. full: waiting. abandoned: begun and never published, so never written.
    """

    written: int
    taken: int
    dropped: int
    stale: int
    full: int
    abandoned: int


class RolloutQueue:
    """A ring of slots with exactly one writer, a collector, and one reader, the learner.

    The writer: `begin`, `write` for each of T vector steps, `publish`. The reader: `take`, `release`, and `discard`.
    A rollout is named by its number n and stands in slot n % slots. Every word has one writer:

    - the writer's `written` is one past the newest whole rollout, and `opened` one past the newest whose slot was ever
      opened for writing. `opened` is stored before the first byte of a rollout, `written` after the last;
    - the reader's taken, dropped and stale add up to `next`, the number that it looks at next; below `freed` it uses
      nothing.

    So rollouts in [next, written) that are at least `opened - slots` are full, and the two sides cannot meet:

    - "block": the writer opens slot n only when `freed` > n - slots: the reader is through with what stood there, and
      does not come back to it before n is written. A rollout is therefore handed out in place.
    - "drop-oldest": the writer opens its slot whatever the reader does. The reader copies a rollout out, and only then
      looks whether `opened` has reached its slot. If so, the copy may be torn, and is thrown away. If not, it was whole
      while it was copied. This asks for ordered stores and ordered loads and no more; to claim a slot in place, the two
      sides would have to agree who was first, for which Python offers nothing over shared memory. The slot itself is
      never in use, only the copy is.

    No number is handed out twice, as next only grows, and each that is passed over is counted as it is passed.

    A writer that is killed has either stored `written` or not: a half-filled rollout is never full. Whoever takes its
    place goes on with the same number in the same slot, and counts what was begun in vain. A reader is not replaced.
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
                raise ValueError(f"{name}={value} leaves no room for a rollout; it must be at least 1")
        if when_full not in get_args(WhenFull):
            raise ValueError(f"when_full={when_full!r} is unknown; use one of {', '.join(get_args(WhenFull))}")
        self.schema, self.steps, self.num_envs, self.slots, self.when_full = schema, steps, num_envs, slots, when_full
        total = self.nbytes(schema, steps, num_envs, slots)
        memory = np.zeros(total, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8, count=total)
        if not memory.flags.writeable:
            raise ValueError("the queue's buffer is read-only; give it a writable one")
        self._words = memory[: 8 * _WORDS].view(np.int64).data
        blocks = memory[8 * _WORDS :].reshape(slots, -1)
        self._row, self._beside = schema.row, schema.beside
        self._slots = [_Slot(schema, steps, num_envs, block) for block in blocks]
        self._copies = when_full == "drop-oldest"
        self._step: int | None = None  # how far the writer has filled its slot, if it has begun
        self._held: dict[int, _Slot] = {}  # what the reader has taken and not released
        self._spare: list[_Slot] = []  # copies that were released

    @staticmethod
    def nbytes(schema: Schema, steps: int, num_envs: int, slots: int) -> int:
        """The size of the buffer that a queue needs: its words, then slot after slot."""
        return 8 * _WORDS + slots * _layout(schema, steps, num_envs)[1]

    # The writer's side.

    def begin(self, version: int, calls: int = 0) -> bool:
        """Opens the next slot for a rollout of T vector steps; False, where it has to wait for the reader.

        What a killed predecessor has begun is abandoned first. Versions do not go back from rollout to rollout.
        """
        if self._step is not None:
            raise RuntimeError("a rollout is being filled already; publish or abandon it first")
        self.abandon()
        words = self._words
        number = words[_WRITTEN]
        if not self.room:
            return False
        words[_BEGUN] += 1
        words[_OPENED] = number + 1
        fence()
        head = self._slots[number % self.slots].head
        head[_VERSION], head[_CALLS] = version, calls
        self._step = 0
        return True

    def write(self, chunk: Chunk, valid: Array | None = None) -> None:
        """The rows of the next vector step; where there are fewer than N, `valid` (N,) bool says whose they are.

        A chunk that does not fit is refused before any row changes.
        """
        if self._step is None or self._step == self.steps:
            raise RuntimeError("no vector step is missing; begin a rollout, and publish it after its last step")
        rows = chunk.rows
        if not isinstance(rows, tuple) or rows[0] is not self._row or self._beside:
            rows = pack(chunk.columns, self.schema)
        given = self.num_envs if valid is None else int(np.count_nonzero(valid))
        if rows[2] != given or (valid is not None and valid.shape != (self.num_envs,)):
            raise ValueError(
                f"{rows[2]} rows do not make a step of {self.num_envs} environments, {given} of them valid; give one "
                f"row for each, or `valid` of shape ({self.num_envs},)"
            )
        if valid is not None and given < self.num_envs:
            rows = _spread(rows, valid)
        self._slots[self._words[_WRITTEN] % self.slots].put(self._step, rows, valid)
        self._step += 1

    @property
    def room(self) -> bool:
        """Whether a rollout can be begun without waiting for the reader."""
        return self._copies or self._words[_WRITTEN] - self._words[_FREED] < self.slots

    @property
    def filling(self) -> bool:
        """Whether a rollout was begun here, and is neither published nor abandoned."""
        return self._step is not None

    @property
    def complete(self) -> bool:
        """Whether the rollout that was begun has all its vector steps."""
        return self._step == self.steps

    @property
    def written(self) -> int:
        """Rollouts that were published."""
        return self._words[_WRITTEN]

    def filled(self) -> tuple[Array, Array]:
        """Rows (k, N) and valid (k, N) of the k vector steps of a rollout that is being filled."""
        slot = self._slots[self._words[_WRITTEN] % self.slots]
        count = self._step or 0
        return slot.rows[:count].copy(), slot.valid[:count].copy()

    def refill(self, rows: Array, valid: Array) -> None:
        """Puts what was `filled` into a rollout that has just been begun."""
        if self._step != 0 or self._beside:
            raise RuntimeError("only a rollout that was just begun, of packed rows alone, can be refilled")
        slot = self._slots[self._words[_WRITTEN] % self.slots]
        slot.rows[: len(rows)], slot.valid[: len(rows)] = rows, valid
        self._step = len(rows)

    def publish(self) -> int:
        """Hands the whole rollout to the reader; returns its number."""
        if self._step != self.steps:
            raise RuntimeError(f"{self._step or 0} of {self.steps} vector steps are written; publish whole rollouts")
        number = self._words[_WRITTEN]
        self._slots[number % self.slots].head[_TIME] = time.monotonic_ns()
        fence()
        self._words[_WRITTEN] = number + 1
        self._step = None
        return number

    def abandon(self) -> None:
        """Gives up what was begun and not published, by this process or by one that was killed: its slot is free."""
        # Set and not increased: whoever is killed here leaves a count that is right, or that the next one puts right.
        self._words[_ABANDONED] = self._words[_BEGUN] - self._words[_WRITTEN]
        self._step = None

    # The reader's side.

    def take(self) -> Rollout | None:
        """The oldest rollout that waits; None, where none does or the writer was faster, and one looks again later.

        It is the reader's until it is released, and several may be. With "block" its arrays are the slot itself, and
        the writer waits when the ring comes round to it; with "drop-oldest" they are a copy.
        """
        if (number := self._first()) is None:
            return None
        slot = self._slots[number % self.slots]
        if self._copies:
            slot = self._copy(slot)
            if not self._still_whole(number):
                self._spare.append(slot)
                return None
        self._held[number] = slot
        self._pass(number, _TAKEN)
        version, calls, when = slot.head[: _TIME + 1]
        return Rollout(number, version, calls, when, slot.valid, slot.rows, slot.columns)

    def release(self, rollout: Rollout) -> None:
        """Ends the use of a rollout: its arrays are written over from here on. In any order, each once."""
        slot = self._held.pop(rollout.number, None)
        if slot is None:
            raise ValueError(f"rollout {rollout.number} is not in use; release what was taken, and only once")
        if self._copies:
            self._spare.append(slot)
        self._free()

    def discard(self, older_than: int) -> int:
        """Drops the waiting rollouts of versions before `older_than`, and returns how many; those in use stay."""
        stale = self._words[_STALE]
        while (number := self._first()) is not None:
            # If the writer has come round to it, this is a later rollout's version, and no older than its own.
            if self._slots[number % self.slots].head[_VERSION] >= older_than:
                break
            self._pass(number, _STALE)
        return self._words[_STALE] - stale

    def counts(self) -> Counts:
        """As of one moment, for the reader; in another process they may be of several."""
        words = self._words
        opened = words[_OPENED]
        fence()
        written = min(words[_WRITTEN], opened)  # the writer may have gone on meanwhile
        taken, dropped, stale = words[_TAKEN], words[_DROPPED], words[_STALE]
        following = taken + dropped + stale
        oldest = max(following, opened - self.slots)
        return Counts(written, taken, dropped + oldest - following, stale, written - oldest, words[_ABANDONED])

    def states(self) -> tuple[State, ...]:
        """Of each slot. One that was released before an older one was stays in use until that one is released, too."""
        words = self._words
        filling = words[_BEGUN] - words[_WRITTEN] > words[_ABANDONED]
        written, following = words[_WRITTEN], self._next
        states: list[State] = ["free"] * self.slots
        for number in range(max(following if self._copies else words[_FREED], words[_OPENED] - self.slots), written):
            states[number % self.slots] = "full" if number >= following else "in use"
        if filling:
            states[written % self.slots] = "filling"
        return tuple(states)

    @property
    def _next(self) -> int:
        """The first number that was neither taken nor passed over."""
        return self._words[_TAKEN] + self._words[_DROPPED] + self._words[_STALE]

    def _first(self) -> int | None:
        """The oldest rollout that waits."""
        number = max(self._next, self._words[_OPENED] - self.slots)
        if number >= self._words[_WRITTEN]:
            return None
        fence()
        return number

    def _still_whole(self, number: int) -> bool:
        """Whether the writer had not yet opened a rollout's slot again when what came before this was read."""
        fence()
        return number >= self._words[_OPENED] - self.slots

    def _copy(self, slot: _Slot) -> _Slot:
        copy = self._spare.pop() if self._spare else None
        if copy is None:
            copy = _Slot(self.schema, self.steps, self.num_envs, np.empty_like(slot.block))
        copy.block[:] = slot.block
        return copy

    def _pass(self, number: int, counter: int) -> None:
        """Counts a rollout, and those before it as dropped."""
        self._words[_DROPPED] += number - self._next
        self._words[counter] += 1
        self._free()

    def _free(self) -> None:
        fence()
        self._words[_FREED] = min(self._held, default=self._next)


class _Slot:
    """The arrays of one rollout, in so many bytes."""

    def __init__(self, schema: Schema, steps: int, num_envs: int, block: Array) -> None:
        self.block = block
        head, self.valid, self.rows, *beside = (
            block[start : start + length].view(dtype).reshape(shape)
            for start, length, shape, dtype in _layout(schema, steps, num_envs)[0]
        )
        self.head, self._bytes = head.data, self.rows.reshape(-1).view(np.uint8).data
        self._width = num_envs * schema.row.itemsize
        self._beside = {field.name: array for field, array in zip(schema.beside, beside, strict=True)}
        self.columns = {name: self.rows[name] for name in schema.row.names or ()} | self._beside

    def put(self, step: int, rows: Packed, valid: Array | None) -> None:
        """One row for each environment."""
        _, data, _, beside = rows
        self._bytes[step * self._width : (step + 1) * self._width] = data
        self.valid[step] = True if valid is None else valid
        for name, store in self._beside.items():
            store[step] = beside[name]


def _spread(rows: Packed, valid: Array) -> Packed:
    """Rows of the valid environments to one row for each environment (N,), zeros where it is not valid."""

    def spread(given: Array) -> Array:
        whole = np.zeros((len(valid), *given.shape[1:]), given.dtype)
        whole[valid] = given
        return whole

    row, data, count, beside = rows
    packed = spread(np.ndarray(count, row, data)).tobytes()
    return row, packed, len(valid), {name: spread(column) for name, column in beside.items()}


def _layout(schema: Schema, steps: int, num_envs: int) -> tuple[list[Laid], int]:
    """Start, length in bytes, shape and dtype of every array of a slot, and its size."""
    lead = steps, num_envs
    parts: list[tuple[tuple[int, ...], np.dtype[Any]]] = [
        ((_HEAD,), np.dtype(np.int64)),
        (lead, np.dtype(bool)),
        (lead, schema.row),
        *(((*lead, *each.shape), np.dtype(each.dtype)) for each in schema.beside),
    ]
    return lay_out(parts)
